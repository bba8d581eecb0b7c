#!/usr/bin/env python3
"""What masks, dropout and packing cost: the forward pass of disentangled attention against its plain form, in one run.

  variants.py --output benchmarks/results/variants.json
  variants.py --lengths 512,2048 --seconds 0.1

Needs PyTorch with a GPU. Device times, medians with a cold L2, as in peers.py; what is compared is executed in turn, as
clocks differ by several per cent from one minute to the next. Rows of `padded`, for each length L, batch
tokens / L, in milliseconds: `inference`; `mask`, right padding that hides less than 64 keys of each sequence and so no
whole tile; `mask_half`, lengths drawn from 1 to L; `training`, without dropout; `dropout`, with 0.1. Rows of `packed`:
sequences of 20 to 60 tokens without padding; the same ones padded to 60 with a mask; and as many tokens in sequences of
60, which is what the padded kernel reaches when nothing is padding.
"""
import argparse
import datetime
import json
import os
import sys
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import capi    # noqa: E402
import peers   # noqa: E402

SHORTEST, LONGEST = 20, 60


class Bench:
    def __init__(self, arguments):
        self.heads, self.head_dim, self.seconds = arguments.heads, arguments.head_dim, arguments.seconds
        self.device = torch.device("cuda:0")
        self.runtime = capi.Runtime(device="0", library=arguments.library)
        self.clock = peers.Clock(self.device)
        self.generator = torch.Generator(device=self.device).manual_seed(0)

    def normal(self, *size):
        return torch.randn(*size, generator=self.generator, device=self.device).to(torch.bfloat16)

    def lengths(self, count, low, high):
        """With one sequence of the longest."""
        drawn = torch.randint(low, high + 1, (count,), generator=self.generator, device=self.device, dtype=torch.int32)
        drawn[0] = high
        return drawn

    def call(self, name, rows, lengths=None, cu_seqlens=None, **fields):
        """An execution of one plan on random rows; `lengths` become a mask. And the plan's config."""
        width = self.heads * self.head_dim
        tables = {key: self.normal(512, width) for key in ("position_key", "position_query")}
        tensors = {key: self.normal(rows, width) for key in ("q", "k", "v")} | tables
        tensors["out"] = torch.empty_like(tensors["q"])
        tensors["cu_seqlens"] = cu_seqlens
        if lengths is not None:
            fields["mask"] = 1
            columns = torch.arange(fields["length"], device=self.device)
            tensors["mask"] = (columns[None, :] < lengths[:, None]).to(torch.uint8)
        if name == "training_forward":
            tensors["lse"] = torch.empty(rows * self.heads, device=self.device)
        plan = capi.Plan(self.runtime, name, torch.bfloat16, heads=self.heads, head_dim=self.head_dim,
                         position_buckets=256, max_relative_positions=512, **fields)
        workspace = plan.workspace(self.device)
        buffers = plan.bind(workspace, seed=1, **tensors)

        def execute():
            plan.execute(buffers)
        execute.kept = workspace, tensors   # the buffers point into these
        return execute, plan.config

    def time(self, **calls):
        """Times of executions that take turns, each after one that brings its code."""
        host_ms = {name: self.clock.warm_up(call) for name, (call, _) in calls.items()}
        samples = {name: [] for name in calls}
        begin = time.perf_counter()
        for turn in range(200):
            if turn >= 10 and time.perf_counter() - begin > self.seconds * len(calls):
                break
            for name, (call, _) in calls.items():
                call()
                samples[name].append(self.clock.once(call, host_ms[name]))
        return {name: peers.summary(samples[name]) | {"config": config} for name, (_, config) in calls.items()}

    def padded(self, length, tokens):
        batch = max(1, tokens // length)
        shape = {"batch": batch, "length": length}
        rows = batch * length
        found = self.time(
            inference=self.call("inference", rows, **shape),
            mask=self.call("inference", rows, self.lengths(batch, max(1, length - 63), length), **shape),
            mask_half=self.call("inference", rows, self.lengths(batch, 1, length), **shape),
            training=self.call("training_forward", rows, **shape),
            dropout=self.call("training_forward", rows, dropout=0.1, **shape),
        )
        plain, training = found["inference"]["median_ms"], found["training"]["median_ms"]
        ratios = {"mask": found["mask"]["median_ms"] / plain, "mask_half": found["mask_half"]["median_ms"] / plain,
                  "dropout": found["dropout"]["median_ms"] / training}
        return {"shape": shape | {"heads": self.heads, "head_dim": self.head_dim}, **found, "ratios": ratios}

    def packed(self, sequences):
        lengths = self.lengths(sequences, SHORTEST, LONGEST)
        bounds = torch.zeros(sequences + 1, dtype=torch.int32, device=self.device)
        bounds[1:] = lengths.cumsum(0)
        tokens = int(bounds[-1])
        dense = max(1, round(tokens / LONGEST))
        found = self.time(
            packed=self.call("inference", tokens, cu_seqlens=bounds, layout=1, batch=sequences, length=LONGEST,
                             tokens=tokens),
            masked=self.call("inference", sequences * LONGEST, lengths, batch=sequences, length=LONGEST),
            dense=self.call("inference", dense * LONGEST, batch=dense, length=LONGEST),
        )
        useful = {"packed": tokens, "masked": tokens, "dense": dense * LONGEST}
        for name, row in found.items():
            row["tokens_per_us"] = useful[name] / row["median_ms"] / 1e3
        ratios = {f"of_{name}": found["packed"]["tokens_per_us"] / found[name]["tokens_per_us"]
                  for name in ("masked", "dense")}
        return {"sequences": sequences, "tokens": tokens, "heads": self.heads, "head_dim": self.head_dim, **found,
                "ratios": ratios}


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libturbotune.so; default: that of build/release")
    parser.add_argument("--output", help="JSON file to write")
    parser.add_argument("--lengths", type=lambda text: [int(x) for x in text.split(",")],
                        default=[128, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--sequences", type=lambda text: [int(x) for x in text.split(",")], default=[128, 1024])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time")
    arguments = parser.parse_args(argv)
    bench = Bench(arguments)
    report = {"device": torch.cuda.get_device_name(0),
              "versions": {"turbotune": bench.runtime.version(), "torch": torch.__version__, "cuda": torch.version.cuda},
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "command": "variants.py " + capi.portable(argv), "dtype": "bfloat16", "padded": [], "packed": []}
    for length in arguments.lengths:
        row = bench.padded(length, arguments.tokens)
        report["padded"].append(row)
        print(f"L {length:5}  inference {row['inference']['median_ms']:.4f} ms  " +
              "  ".join(f"{name} x {ratio:.3f}" for name, ratio in row["ratios"].items()), flush=True)
    for sequences in arguments.sequences:
        row = bench.packed(sequences)
        report["packed"].append(row)
        print(f"{sequences} sequences of {SHORTEST} to {LONGEST}  packed {row['packed']['median_ms']:.4f} ms, tokens per "
              "second " + "  ".join(f"{name} x {ratio:.3f}" for name, ratio in row["ratios"].items()), flush=True)
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
