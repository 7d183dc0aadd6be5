"""Train a vision transformer of torchvision, as its references/classification/train.py does, on images made here.

python torchvision_vit.py --output-dir out --epochs 2
torchrun --nproc-per-node 2 torchvision_vit.py --output-dir out --epochs 2
"""

import argparse
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchvision.models import VisionTransformer

CLASSES, SIZE = 4, 16


class Patterns(torch.utils.data.Dataset):
    def __init__(self, images, seed):
        self.images, self.seed = images, seed

    def __len__(self):
        return self.images

    def __getitem__(self, index):
        label = index % CLASSES
        noise = torch.randn(3, SIZE, SIZE, generator=torch.Generator().manual_seed(self.seed + index))
        return noise + torch.sin(torch.arange(SIZE) * (label + 1) / 2), label


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch):
    model.train()
    for i, (image, target) in enumerate(data_loader):
        loss = criterion(model(image.to(device)), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"epoch {epoch}, batch {i}: loss {loss.item():.4f}")


@torch.inference_mode()
def evaluate(model, data_loader, device):
    model.eval()
    correct = torch.zeros((), device=device)
    for image, target in data_loader:
        correct += (model(image.to(device)).argmax(1) == target.to(device)).sum()
    print(f"accuracy {correct.item() / len(data_loader.dataset):.3f}")


def main(args):
    is_distributed = "RANK" in os.environ
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if is_distributed:
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        args.batch_size //= torch.distributed.get_world_size()
    torch.manual_seed(0)

    dataset, dataset_test = Patterns(160, seed=0), Patterns(64, seed=1000)
    train_sampler = DistributedSampler(dataset) if is_distributed else RandomSampler(dataset)
    data_loader = DataLoader(dataset, batch_size=args.batch_size, sampler=train_sampler)
    data_loader_test = DataLoader(dataset_test, batch_size=args.batch_size)

    model = VisionTransformer(
        image_size=SIZE, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=CLASSES
    )
    model.to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    model_without_ddp = model
    if is_distributed:
        model = DistributedDataParallel(model)

    start_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model_without_ddp.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
        start_epoch = checkpoint["epoch"] + 1

    for epoch in range(start_epoch, args.epochs):
        if is_distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch)
        lr_scheduler.step()
        evaluate(model, data_loader_test, device)
        state = {"model": model_without_ddp.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"lr_scheduler": lr_scheduler.state_dict(), "epoch": epoch}
        torch.save(state, f"{args.output_dir}/model_{epoch}.pth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", default="")
    main(parser.parse_args())
