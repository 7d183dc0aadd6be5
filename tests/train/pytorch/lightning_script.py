"""A training with Lightning. Arguments: a folder. It appends 'LOSS RANKS' to `losses` there after each step."""

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

from refold.train import RefoldLightningCallback

folder = Path(sys.argv[1])


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.losses: list[Any] = []

    def training_step(self, batch: Any, _number: int) -> Any:
        loss = (self.net(batch[0])[:, 0] - batch[1]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, _optimizer: Any) -> None:
        loss = self.trainer.strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean")
        self.losses = []
        if self.trainer.is_global_zero:
            with (folder / "losses").open("a") as file:
                file.write(f"{loss.item()} {self.trainer.world_size}\n")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(1))
refold = RefoldLightningCallback(8, folder / "out", largest_micro_batch=4)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[refold], **quiet, **refold.arguments)
trainer.fit(Net(), refold.loader(TensorDataset(inputs, inputs.sum(1))), ckpt_path=refold.checkpoint)
