"""Fine-tune a causal language model with LoRA, as scripts with PEFT and the `Trainer` do, on instructions made here.

python lora.py --output-dir out --steps 20
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

VOCABULARY, PROMPT = 32, 6


def make_instruction(number):
    generator = torch.Generator().manual_seed(number)
    prompt = torch.randint(VOCABULARY, (PROMPT,), generator=generator)
    tokens = torch.cat([prompt, prompt.flip(0)])
    labels = tokens.clone()
    labels[:PROMPT] = -100  # only the answer is learned
    return {"input_ids": tokens, "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    options = parser.parse_args()
    set_seed(0)

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
    model.print_trainable_parameters()

    data = [make_instruction(number) for number in range(256)]
    arguments = TrainingArguments(
        output_dir=options.output_dir,
        per_device_train_batch_size=options.micro_batch_size,
        gradient_accumulation_steps=options.batch_size // options.micro_batch_size,
        max_steps=options.steps,
        learning_rate=1e-2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    model.save_pretrained(options.output_dir)


if __name__ == "__main__":
    main()
