#!/usr/bin/env python3
"""Times disentangled attention on the CPU device beside PyTorch's eager computation of the same formula.

  cpu_vs_pytorch.py [--program build/release/benchmarks/benchmark_cpu_attention] [--output FILE]

Both sides get the same fp32 numbers and as many threads, and take turns, one execution each. PyTorch starts from what
favours it: heads split and contiguous, position tables repeated over the batch, index tensors made beforehand. Of the
backward pass only itself is timed: autograd from the output's gradient to those of q, k, v and both tables. Exits 1 when
any two outputs differ by more than 2e-4 of the largest value. Where others use the machine, `--clock processor` counts
the processor time of one thread. Needs PyTorch and NumPy.
"""
import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 2e-4
SHAPES = [(16, 128), (4, 512), (2, 1024), (1, 2048)]   # (batch, length)
CLOCKS = ("wall", "processor")
INPUTS = ("q", "k", "v", "position_key", "position_query")
OUTPUTS = {"inference": ("out",), "backward": ("dq", "dk", "dv", "d_position_key", "d_position_query")}
HEADS, HEAD_DIM, BUCKETS, MOST = 12, 64, 256, 512


def slot_table(length):
    """slot(i - j) as [length, length]."""
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    middle = BUCKETS // 2
    far = torch.ceil(torch.log(distance.abs().double() / middle) / math.log((MOST - 1) / middle) * (middle - 1)) + middle
    bucket = torch.where(distance.abs() <= middle, distance.double(), far * distance.sign()).long()
    return (bucket + BUCKETS).clamp(0, 2 * BUCKETS - 1)


class Eager:
    """The products, gathers and softmax of a DeBERTa-v2 self-attention layer, between its projections."""

    def __init__(self, batch, length, arrays, backward):
        def split(x):   # [B, L, H*D] -> [B*H, L, D]
            x = x.view(batch, length, HEADS, HEAD_DIM).transpose(1, 2)
            return x.reshape(batch * HEADS, length, HEAD_DIM).contiguous()

        def table(x):   # [2*span, H*D] -> [B*H, 2*span, D]
            return x.view(-1, HEADS, HEAD_DIM).transpose(0, 1).repeat(batch, 1, 1).contiguous()

        self.batch, self.length, self.backward = batch, length, backward
        self.inputs = [torch.from_numpy(arrays[name]).requires_grad_(backward) for name in INPUTS]
        q, k, v, position_key, position_query = self.inputs
        self.q, self.k, self.v = split(q), split(k), split(v)
        self.position_key, self.position_query = table(position_key), table(position_query)
        slots = slot_table(length)
        everywhere = (batch * HEADS, length, length)
        self.c2p_index = slots.expand(everywhere)
        self.p2c_index = slots.transpose(0, 1).contiguous().expand(everywhere)
        if backward:
            self.out, self.dout = self.attend(), split(torch.from_numpy(arrays["dout"]))

    def __call__(self):
        """The output [B*H, L, D], or the gradients of the inputs."""
        if self.backward:
            return torch.autograd.grad(self.out, self.inputs, self.dout, retain_graph=True)
        return (self.attend(),)

    def attend(self):
        scale = 1 / math.sqrt(HEAD_DIM * 3)
        scores = torch.bmm(self.q, self.k.transpose(-1, -2) * scale)
        c2p = torch.bmm(self.q, self.position_key.transpose(-1, -2))
        scores += torch.gather(c2p, dim=-1, index=self.c2p_index) * scale
        p2c = torch.bmm(self.k, self.position_query.transpose(-1, -2))
        scores += torch.gather(p2c, dim=-1, index=self.p2c_index).transpose(-1, -2) * scale
        return torch.bmm(torch.softmax(scores, dim=-1), self.v)

    def results(self, called):   # as rows of H*D
        if self.backward:
            return called
        out, = called
        return (out.view(self.batch, HEADS, self.length, HEAD_DIM).transpose(1, 2).reshape(self.batch, self.length, -1),)


class Ours:
    def __init__(self, program, directory, which, batch, length, threads):
        command = [program, directory, "--pass", which, "--batch", str(batch), "--length", str(length), "--heads", str(HEADS),
                   "--head-dim", str(HEAD_DIM), "--position-buckets", str(BUCKETS),
                   "--max-relative-positions", str(MOST)]
        self.directory = directory
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, TURBOTUNE_CPU_THREADS=str(threads)))
        self.about = json.loads(self.line())

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("cpu_vs_pytorch.py: the program ended early")
        return line

    def run(self, clock):
        """Milliseconds of one execution."""
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self.line().split()[CLOCKS.index(clock)])

    def finish(self, names):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("cpu_vs_pytorch.py: the program failed")
        return [numpy.fromfile(os.path.join(self.directory, name + ".f32"), dtype=numpy.float32) for name in names]


def summary(samples):
    return {"min": round(min(samples), 3), "median": round(float(numpy.median(samples)), 3),
            "p90": round(float(numpy.quantile(samples, 0.9)), 3), "samples": len(samples)}


def compare(program, which, batch, length, rounds, threads, clock):
    now = time.perf_counter if clock == "wall" else time.process_time
    generator = numpy.random.default_rng(length)
    width = HEADS * HEAD_DIM
    arrays = {name: generator.standard_normal((batch, length, width), dtype=numpy.float32)
              for name in ("q", "k", "v", "dout")}
    for name in ("position_key", "position_query"):
        arrays[name] = generator.standard_normal((2 * BUCKETS, width), dtype=numpy.float32)
    with tempfile.TemporaryDirectory() as directory:
        for name, array in arrays.items():
            array.tofile(os.path.join(directory, name + ".f32"))
        ours = Ours(program, directory, which, batch, length, threads)
        eager = Eager(batch, length, arrays, which == "backward")
        theirs_ms, ours_ms = [], []
        for turn in range(rounds + 3):
            # The worker threads of one side spin for a while after their work: let them settle.
            time.sleep(0.02)
            start = now()
            expected = eager()
            elapsed = (now() - start) * 1e3
            time.sleep(0.02)
            own = ours.run(clock)
            if turn >= 3:   # warm
                theirs_ms.append(elapsed)
                ours_ms.append(own)
        got = ours.finish(OUTPUTS[which])
    want = [result.numpy().reshape(-1) for result in eager.results(expected)]
    error = max(float(numpy.abs(a - b).max() / numpy.abs(b).max()) for a, b in zip(got, want))
    theirs, own = summary(theirs_ms), summary(ours_ms)
    row = {"pass": which, "batch": batch, "heads": HEADS, "length": length, "head_dim": HEAD_DIM, "dtype": "f32",
           "position_buckets": BUCKETS, "max_relative_positions": MOST, "threads": threads, "clock": clock,
           "pytorch_ms": theirs, "turbotune_ms": own, "speedup": round(theirs["median"] / own["median"], 2),
           "error": error, "config": ours.about["config"]}
    return row, ours.about


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(HERE, "../build/release/benchmarks/benchmark_cpu_attention"))
    parser.add_argument("--output", default=os.path.join(HERE, "results/cpu_disentangled_attention.json"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    if arguments.clock == "processor":
        arguments.threads = 1
    torch.set_num_threads(arguments.threads)
    rows = []
    for which in OUTPUTS:
        for batch, length in SHAPES:
            with torch.set_grad_enabled(which == "backward"):
                row, about = compare(arguments.program, which, batch, length, arguments.rounds, arguments.threads,
                                     arguments.clock)
            rows.append(row)
            print("{pass:9} B {batch:2} L {length:4}  PyTorch {pytorch_ms[median]:8.1f} ms  TurboTune {turbotune_ms[median]:7.1f} ms"
                  "  {speedup:5.2f} x  error {error:.1e}".format(**row), flush=True)
    report = {"device": {"name": about["device"], "class": about["device_class"]},
              "versions": {"compiler": about["compiler"], "pytorch": torch.__version__, "numpy": numpy.__version__,
                           "python": platform.python_version()},
              "date": datetime.date.today().isoformat(),
              "command": "benchmarks/cpu_vs_pytorch.py --rounds {} --threads {} --clock {}".format(
                  arguments.rounds, arguments.threads, arguments.clock),
              "load_average": round(os.getloadavg()[0], 2), "rows": rows}
    with open(arguments.output, "w") as file:
        json.dump(report, file, indent=2)
        file.write("\n")
    if max(row["error"] for row in rows) > TOLERANCE:
        sys.exit("cpu_vs_pytorch.py: the outputs differ by more than {}".format(TOLERANCE))


if __name__ == "__main__":
    main()
