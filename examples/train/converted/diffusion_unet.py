"""Train a U-Net to remove noise with Accelerate, as train_unconditional.py of Diffusers does, on images made here.

python diffusion_unet.py --output-dir out --epochs 3
"""

import argparse
import copy

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import mse_loss, silu
from torch.utils.data import DataLoader

SIZE, STEPS = 16, 100


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(4, outputs)
        self.time = nn.Linear(16, outputs)

    def forward(self, hidden, time):
        hidden = silu(self.norm(self.first(hidden))) + self.time(time)[:, :, None, None]
        return silu(self.second(hidden))


class UNet(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.embedding = nn.Embedding(STEPS, 16)
        self.down = Block(1, channels)
        self.middle = Block(channels, 2 * channels)
        self.up = Block(3 * channels, channels)
        self.out = nn.Conv2d(channels, 1, 1)

    def forward(self, images, timesteps):
        time = self.embedding(timesteps)
        down = self.down(images, time)
        middle = self.middle(nn.functional.avg_pool2d(down, 2), time)
        up = nn.functional.interpolate(middle, scale_factor=2)
        return self.out(self.up(torch.cat([up, down], dim=1), time))


class EMA:
    def __init__(self, model, decay=0.99):
        self.model = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def step(self, model):
        for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(value, 1 - self.decay)

    def state_dict(self):
        return self.model.state_dict()

    def load_state_dict(self, state):
        self.model.load_state_dict(state)


def make_image(number):
    generator = torch.Generator().manual_seed(number)
    phase = 6 * torch.rand(2, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    return torch.sin(rows / 2 + phase[0]).mul(torch.cos(columns / 2 + phase[1]))[None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    images = [make_image(number) for number in range(192)]
    loader = DataLoader(images, batch_size=options.batch_size, shuffle=True)
    model = UNet()
    ema = EMA(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ema.model.to(accelerator.device)
    accelerator.register_for_checkpointing(ema)
    remaining = torch.cumprod(1 - torch.linspace(1e-3, 0.1, STEPS, device=accelerator.device), dim=0)

    for _ in range(options.epochs):
        model.train()
        for clean in loader:
            noise = torch.randn_like(clean)
            timesteps = torch.randint(STEPS, (len(clean),), device=clean.device)
            share = remaining[timesteps][:, None, None, None]
            noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
            with accelerator.accumulate(model):
                loss = mse_loss(model(noisy, timesteps), noise)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema.step(accelerator.unwrap_model(model))
            accelerator.print(f"loss {accelerator.gather(loss.detach()).mean():.4f}")

    if accelerator.is_main_process:
        torch.save(ema.state_dict(), f"{options.output_dir}/ema.pt")


if __name__ == "__main__":
    main()
