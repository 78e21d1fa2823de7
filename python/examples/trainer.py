"""0/1 Adam in Hugging Face's Trainer, by its ordinary hooks.

    torchrun --nproc-per-node 2 examples/trainer.py

Trainer wraps the model in DDP by itself; `no_sync` keeps that from averaging what the optimizer averages. Needs transformers and
accelerate. The network is GPT-2, tiny and untrained: nothing is downloaded.
"""

import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import thinwire

STEPS, WARMUP, LR = 60, 6, 3e-3


class ThinTrainer(Trainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            schedule = {"peak": LR, "warmup": WARMUP, "decay": "cosine", "steps": STEPS}
            self.optimizer = thinwire.ZeroOneAdam(self.model.parameters(), lr=LR, clip=1.0, learning_rate=schedule)
            self.thin = self.optimizer  # accelerate will put a wrapper around the other
        return self.optimizer

    def training_step(self, model, *arguments, **keywords):
        with model.no_sync():  # each rank's gradient stays its own
            return super().training_step(model, *arguments, **keywords)

    def evaluate(self, *arguments, **keywords):
        with self.thin.consensus():  # also between two syncs
            return super().evaluate(*arguments, **keywords)


def rows(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Tokens of which each follows from the one before."""
    starts = torch.randint(61, (count, 1), generator=torch.Generator().manual_seed(seed))
    tokens = (starts * torch.tensor([pow(3, i, 61) for i in range(16)])) % 61
    return [{"input_ids": row, "labels": row} for row in tokens]


def main() -> None:
    set_seed(0)  # every rank starts from the same parameters
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            learning_rate=LR,
            warmup_steps=WARMUP,
            lr_scheduler_type="cosine",
            per_device_train_batch_size=16,
            max_grad_norm=0,  # `clip` of the optimizer sees the mean
            save_strategy="no",  # Trainer keeps rank 0's state alone; optimizer.save(dir) keeps all
            eval_strategy="steps",
            eval_steps=25,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        trainer = ThinTrainer(model, arguments, train_dataset=rows(2000, 1), eval_dataset=rows(64, 2))
        before = loss_of(model)
        trainer.train()
    trainer.thin.sync()  # all replicas are now the same bits
    after = loss_of(model)
    totals = [None] * dist.get_world_size()
    dist.all_gather_object(totals, sum(p.detach().double().sum().item() for p in model.parameters()))
    assert len(set(totals)) == 1 and after < 0.7 * before
    if dist.get_rank() == 0:
        print(f"Trainer on {len(totals)} ranks: loss {before:.2f} -> {after:.2f}, rounds {trainer.thin.traffic()['rounds']}")
    dist.destroy_process_group()


@torch.no_grad()
def loss_of(model: torch.nn.Module) -> float:
    tokens = torch.stack([row["input_ids"] for row in rows(64, 3)])
    return model(input_ids=tokens, labels=tokens).loss.item()


if __name__ == "__main__":
    main()
