"""Train a GPT with a loop as that of nanoGPT's train.py, on text made here: on one device, or with torchrun.

python nano_gpt.py
torchrun --nproc-per-node 2 nano_gpt.py
"""

import math
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

out_dir = Path(sys.argv[1] if len(sys.argv) > 1 else "out")
eval_interval, log_interval, eval_batches = 10, 1, 4
gradient_accumulation_steps, batch_size, block_size = 4, 4, 16
layers, heads, width, vocabulary = 2, 4, 32, 27
learning_rate, max_iters, warmup_iters, min_lr = 3e-3, 30, 5, 3e-4
grad_clip = 1.0

ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = int(os.environ["RANK"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    assert gradient_accumulation_steps % int(os.environ["WORLD_SIZE"]) == 0
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    rank = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337 + rank)

words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
text = " ".join(words[(i * i + 3 * i) % len(words)] for i in range(2000))
tokens = torch.tensor([0 if letter == " " else ord(letter) - ord("a") + 1 for letter in text])
train_data, val_data = tokens[:-1000], tokens[-1000:]


def get_batch(split):
    data = train_data if split == "train" else val_data
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[start : start + block_size] for start in starts])
    y = torch.stack([data[start + 1 : start + 1 + block_size] for start in starts])
    return x.to(device), y.to(device)


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, width // heads)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = CausalSelfAttention(), MLP()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        hidden = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def loss_of(logits, y):
    return cross_entropy(logits.flatten(0, 1), y.flatten())


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [loss_of(model(x), y) for x, y in (get_batch("val") for _ in range(eval_batches))]
    model.train()
    return torch.stack(losses).mean().item()


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
iter_num = 0
if (out_dir / "ckpt.pt").exists():
    checkpoint = torch.load(out_dir / "ckpt.pt", map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw_model = model
if ddp:
    model = DistributedDataParallel(model)

t0 = time.time()
while iter_num < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        x, y = get_batch("train")
        loss = loss_of(model(x), y) / gradient_accumulation_steps
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num % log_interval == 0 and rank == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, {time.time() - t0:.2f} s")
    if iter_num % eval_interval == 0:
        val_loss = estimate_loss()
        if rank == 0:
            print(f"step {iter_num}: val loss {val_loss:.4f}")
            out_dir.mkdir(exist_ok=True)
            state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(state, out_dir / "ckpt.pt")
if ddp:
    destroy_process_group()
