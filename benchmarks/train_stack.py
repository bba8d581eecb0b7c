#!/usr/bin/env python3
"""Trains a DeBERTa-v2-shaped stack twice from the same weights on the same data: with Hugging Face's eager attention, and
with ours in its place.

  train_stack.py --library build/release/libturbotune.so --output benchmarks/results/train_stack.json

The model learns to give back its input tokens. Both runs draw the same dropout in the hidden states; that of the attention
weights comes from two generators, so that losses agree in the mean only. Exits 1 when they differ by more than 1 % at any
step, when one does not fall, or when the gradients of the query, key and position weights, which come through the scores
alone, differ in norm by more than 5 % at the first step. Needs PyTorch and transformers.
"""
import argparse
import copy
import datetime
import json
import os
import statistics
import sys
import time
import types

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import capi  # noqa: E402

TOLERANCE, NORM_TOLERANCE = 0.01, 0.05


class Attention:
    """Plans and buffers of one shape, shared by all layers: a layer's forward is over when the next begins."""

    def __init__(self, runtime, shape, dtype, dropout, device):
        self.shape, self.dtype, self.device, self.dropout = shape, dtype, device, dropout
        fields = {**shape, "dropout": dropout}
        self.forward_plan = capi.Plan(runtime, "training_forward", dtype, **fields)
        self.backward_plan = capi.Plan(runtime, "backward", dtype, **fields)
        most = max(self.forward_plan.workspace_bytes, self.backward_plan.workspace_bytes)
        self.workspace = capi.aligned_bytes(most, device)
        self.offset = 0   # of dropout: another one for each layer and step

    def next_offset(self):
        self.offset += 1
        return self.offset


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, attention, q, k, v, position_key, position_query):
        q, k, v, position_key, position_query = (x.contiguous() for x in (q, k, v, position_key, position_query))
        out = torch.empty_like(q)
        lse = torch.empty(attention.shape["batch"], attention.shape["heads"], attention.shape["length"],
                          device=attention.device)
        ctx.attention, ctx.offset = attention, attention.next_offset()
        plan = attention.forward_plan
        plan.execute(plan.bind(attention.workspace, offset=ctx.offset, q=q, k=k, v=v, position_key=position_key,
                               position_query=position_query, out=out, lse=lse))
        ctx.save_for_backward(q, k, v, position_key, position_query, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, position_key, position_query, out, lse = ctx.saved_tensors
        dout = dout.contiguous()
        dq, dk, dv, d_position_key, d_position_query = (torch.empty_like(x) for x in (q, k, v, position_key, position_query))
        plan = ctx.attention.backward_plan
        plan.execute(plan.bind(ctx.attention.workspace, offset=ctx.offset, q=q, k=k, v=v, position_key=position_key,
                               position_query=position_query, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv,
                               d_position_key=d_position_key, d_position_query=d_position_query))
        return None, dq, dk, dv, d_position_key, d_position_query


def use_ours(model, attention):
    """Replaces what lies between the projections of every layer."""

    def forward(self, hidden_states, attention_mask, output_attentions=False, query_states=None, relative_pos=None,
                rel_embeddings=None):
        embeddings = self.pos_dropout(rel_embeddings)[:2 * self.pos_ebd_size]
        tensors = (self.query_proj(hidden_states), self.key_proj(hidden_states), self.value_proj(hidden_states),
                   self.key_proj(embeddings), self.query_proj(embeddings))
        return Function.apply(attention, *(x.to(attention.dtype) for x in tensors)), None

    for layer in model.encoder.layer:
        layer.attention.self.forward = types.MethodType(forward, layer.attention.self)


class SeededDropout:
    """Gives each dropout layer, at each step, a seed of its own, whatever ran before."""

    def __init__(self, model):
        self.step = 0
        for index, module in enumerate(m for m in model.modules() if isinstance(m, torch.nn.Dropout)):
            module.register_forward_pre_hook(lambda *_, index=index: self.seed(index))

    def seed(self, index):
        torch.manual_seed(1000 * self.step + index)


def score_gradient_norm(model):
    weights = [model.encoder.rel_embeddings.weight]
    for layer in model.encoder.layer:
        weights += [layer.attention.self.query_proj.weight, layer.attention.self.key_proj.weight]
    return torch.stack([weight.grad.float().norm() for weight in weights]).norm().item()


def train(model, head, batches, arguments, device):
    model, head = model.to(device).train(), head.to(device)
    dropout = SeededDropout(model)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=arguments.rate)
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, norms, milliseconds = [], [], []
    for step, tokens in enumerate(batches):
        dropout.step = step
        if gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast(device.type, dtype=getattr(torch, arguments.dtype), enabled=arguments.dtype != "float32"):
            hidden = model(input_ids=tokens).last_hidden_state
            loss = torch.nn.functional.cross_entropy(head(hidden).float().flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(score_gradient_norm(model))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())   # waits
        milliseconds.append((time.perf_counter() - begin) * 1e3)
    return {"losses": losses, "score_gradient_norms": norms, "step_ms": statistics.median(milliseconds[2:] or milliseconds),
            "peak_bytes": torch.cuda.max_memory_allocated() if gpu else None}


def build(arguments):
    from transformers import DebertaV2Config, DebertaV2Model
    torch.manual_seed(0)
    config = DebertaV2Config(
        vocab_size=arguments.vocabulary, hidden_size=arguments.hidden, num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads, intermediate_size=4 * arguments.hidden, max_position_embeddings=512,
        relative_attention=True, position_buckets=256, pos_att_type=["c2p", "p2c"], share_att_key=True,
        norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
        hidden_dropout_prob=arguments.dropout, attention_probs_dropout_prob=arguments.dropout)
    return DebertaV2Model(config), torch.nn.Linear(arguments.hidden, arguments.vocabulary)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default=os.path.join(HERE, "../build/release/libturbotune.so"))
    parser.add_argument("--output")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16, float16, float32")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--device", default="cuda:0")
    return parser.parse_args(argv)


def main(argv):
    arguments = parse(argv)
    device = torch.device(arguments.device)
    model, head = build(arguments)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(3, arguments.vocabulary, (arguments.batch, arguments.length), generator=generator).to(device)
               for _ in range(arguments.steps)]
    runtime = capi.Runtime(device="cpu" if device.type == "cpu" else str(device.index or 0), library=arguments.library)
    shape = {"batch": arguments.batch, "heads": arguments.heads, "length": arguments.length,
             "head_dim": arguments.hidden // arguments.heads, "position_buckets": 256, "max_relative_positions": 512}
    attention = Attention(runtime, shape, getattr(torch, arguments.dtype), arguments.dropout, device)

    eager = train(copy.deepcopy(model), copy.deepcopy(head), batches, arguments, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    use_ours(model, attention)
    ours = train(model, head, batches, arguments, device)

    difference = max(abs(a - b) / a for a, b in zip(eager["losses"], ours["losses"]))
    norms = [run["score_gradient_norms"][0] for run in (eager, ours)]
    norm_difference = abs(norms[0] - norms[1]) / norms[0]
    falling = all(run["losses"][-1] < 0.98 * run["losses"][0] for run in (eager, ours))
    import transformers
    report = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
              "versions": {"turbotune": runtime.version(), "torch": torch.__version__,
                           "transformers": transformers.__version__},
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "command": "train_stack.py " + capi.portable(argv),
              "shape": {**shape, "layers": arguments.layers}, "dtype": arguments.dtype, "dropout": arguments.dropout,
              "configs": {"training_forward": attention.forward_plan.config, "backward": attention.backward_plan.config},
              "hugging_face": eager, "turbotune": ours, "largest_difference": difference, "tolerance": TOLERANCE,
              "score_gradient_norm_difference": norm_difference, "score_gradient_norm_tolerance": NORM_TOLERANCE,
              "falling": falling}
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    for step, (a, b) in enumerate(zip(eager["losses"], ours["losses"])):
        print(f"step {step:3}  hugging_face {a:.4f}  turbotune {b:.4f}")
    for name, run in (("hugging_face", eager), ("turbotune", ours)):
        print(f"{name}: {run['step_ms']:.2f} ms a step, peak {run['peak_bytes']}")
    print(f"largest difference {difference:.2%} (at most {TOLERANCE:.0%}); both fall: {falling}")
    print(f"gradients through the scores at the first step: {norms[0]:.4e}, {norms[1]:.4e}, {norm_difference:.2%} apart "
          f"(at most {NORM_TOLERANCE:.0%})")
    return 0 if difference <= TOLERANCE and norm_difference <= NORM_TOLERANCE and falling else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
