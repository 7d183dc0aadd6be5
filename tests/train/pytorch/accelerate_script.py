"""A training with Accelerate. Arguments: a folder. It appends 'LOSS RANKS' to `losses` there after each step."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from refold.train import AccelerateRun

folder = Path(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
run = AccelerateRun(8, folder / "out", largest_micro_batch=4)
accelerator = run.accelerator()
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 60)
inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_size=run.loader_batch, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []
for _ in run.epochs(loader, 3):
    for x, y in run.batches(loader):
        with accelerator.accumulate(model):
            loss = (model(x)[:, 0] - y).square().mean()
            accelerator.backward(loss)
            losses.append(accelerator.gather(loss.detach()).mean().item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            if accelerator.is_main_process:
                with (folder / "losses").open("a") as file:
                    file.write(f"{sum(losses) / len(losses)} {accelerator.num_processes}\n")
            losses = []
