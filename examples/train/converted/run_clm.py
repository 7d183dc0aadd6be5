"""Train a causal language model with the `Trainer`, as run_clm.py of Transformers does, on text made here.

python run_clm.py --output_dir out --max_steps 20
"""

import math
from dataclasses import dataclass
from itertools import chain

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ModelArguments:
    hidden_size: int = 32
    num_hidden_layers: int = 2


@dataclass
class DataTrainingArguments:
    block_size: int = 16
    texts: int = 200


def tokenize(text):
    return [ord(letter) - ord("a") for letter in text]


def group_texts(texts, block_size):
    tokens = list(chain(*texts))
    blocks = [torch.tensor(tokens[i : i + block_size]) for i in range(0, len(tokens) - block_size + 1, block_size)]
    return [{"input_ids": block, "labels": block} for block in blocks]


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    texts = ["".join(words[(i * (j + 1)) % len(words)] for j in range(10)) for i in range(data_args.texts)]
    blocks = group_texts(map(tokenize, texts), data_args.block_size)
    train_dataset, eval_dataset = blocks[16:], blocks[:16]

    config = LlamaConfig(
        vocab_size=26,
        hidden_size=model_args.hidden_size,
        intermediate_size=2 * model_args.hidden_size,
        num_hidden_layers=model_args.num_hidden_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        data_collator=default_data_collator,
    )
    checkpoint = training_args.resume_from_checkpoint
    train_result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    metrics = trainer.evaluate()
    metrics["perplexity"] = math.exp(metrics["eval_loss"])
    trainer.log_metrics("eval", metrics)


if __name__ == "__main__":
    main()
