"""Train a BERT classifier with Accelerate, as run_glue_no_trainer.py of Transformers does, on sentences made here.

python bert_classifier.py --output-dir out --epochs 3
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler, set_seed

VOCABULARY, LENGTH = 64, 12


def make_sentence(number):
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, VOCABULARY, (LENGTH,), generator=generator)
    return {"input_ids": tokens, "labels": (tokens < VOCABULARY // 2).sum() > LENGTH // 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    sentences = [make_sentence(number) for number in range(192)]
    train_loader = DataLoader(sentences[32:], batch_size=options.batch_size, shuffle=True)
    eval_loader = DataLoader(sentences[:32], batch_size=options.batch_size)

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    scheduler = get_scheduler("linear", optimizer, 0, options.epochs * len(sentences[32:]) // options.batch_size)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )

    for epoch in range(options.epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**{**batch, "labels": batch["labels"].long()}).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.print(f"loss {accelerator.gather(loss.detach()).mean():.4f}")

        model.eval()
        correct = total = 0
        for batch in eval_loader:
            with torch.no_grad():
                predictions = model(input_ids=batch["input_ids"]).logits.argmax(dim=-1)
            predictions, labels = accelerator.gather_for_metrics((predictions, batch["labels"]))
            correct += (predictions == labels).sum().item()
            total += len(labels)
        accelerator.print(f"epoch {epoch}, accuracy {correct / total:.3f}")

    accelerator.unwrap_model(model).save_pretrained(options.output_dir, is_main_process=accelerator.is_main_process)


if __name__ == "__main__":
    main()
