#!/usr/bin/env python3
"""Checks and times the tf32 kernels of disentangled attention against float64 and the strict fp32 kernels.

  da_tf32.py compile [--targets sm_80,sm_90a,sm_100a,sm_120a]   registers and spills of every config (no GPU needed)
  da_tf32.py prebuild                                           compiles what check and time need (no GPU)
  da_tf32.py check [--few]                                      out, lse and gradients against PyTorch in float64
  da_tf32.py time [--lengths 512,2048,8192]                     median times beside those of the strict kernels

Cubins are kept in --cache DIR. See da_kernels.py and da_backward_simt.py.
"""
import argparse
import itertools
import math
import os
import statistics
import sys
import time

import da_backward_simt as simt
import da_kernels as da

FORWARD = {   # block_m, block_n, warps, stages, blocks_per_sm
    64: [(64, 64, 4, 1, 2), (64, 32, 4, 1, 3), (64, 32, 4, 2, 2), (128, 32, 8, 1, 1)],
    32: [(128, 32, 4, 1, 2), (64, 64, 4, 1, 3), (64, 32, 4, 1, 4)],
    128: [(128, 32, 8, 1, 1), (64, 32, 4, 1, 1)],
}
ROWS = {      # block_n, stages, resident, blocks_per_sm, positions: "tf32" or "strict"
    64: [(32, 2, True, 2, "tf32"), (32, 1, True, 2, "tf32"), (32, 1, True, 2, "strict")],
    32: [(32, 2, True, 3, "tf32"), (32, 1, True, 3, "tf32")],
    128: [(32, 1, False, 1, "strict")],
}
BLOCK = 64
LIMIT = 5e-3
STRICT = {64: (64, 2, 2), 32: (64, 2, 2), 128: (64, 1, 1)}   # block, blocks_per_sm, position_blocks_per_sm


# --- kernels ---------------------------------------------------------------------------------------------------------

def tile_bytes(head_dim, block_m, block_n, warps, stages, terms, column_warps=1):
    tile = block_n * head_dim * 4
    ring = (block_m + block_n - 1) // block_n + 1 + stages - 1
    shift = warps * (block_m * column_warps // warps) * (block_n + 4) * 4
    return 2 * stages * tile + terms * ring * tile + (shift if terms else 0)


def forward_key(flags, aligned, c):
    block_m, block_n, warps, stages, blocks = c
    shared = tile_bytes(flags["head_dim"], block_m, block_n, warps, stages, flags["c2p"] + flags["p2c"]) + 8 * flags["mask"]
    return simt.key("forward_mma.cu", "disentangled_attention_forward_mma",
                    dict(flags, lse=True, block_m=block_m, block_n=block_n, warps=warps, stages=stages, blocks_per_sm=blocks,
                         aligned=aligned, shared_bytes=shared))


def rows_key(flags, aligned, c, own_keys):
    block_n, stages, resident, blocks, _ = c
    shared = tile_bytes(flags["head_dim"], BLOCK, block_n, BLOCK // 16, stages, flags["c2p"] + flags["p2c"])
    shared += 0 if resident else 2 * BLOCK * flags["head_dim"] * 4
    shared += (8 * stages * block_n if own_keys else 0) + 8 * BLOCK
    shared += 4 * stages * 2 * (block_n if own_keys else BLOCK) if flags["dropout"] else 0
    return simt.key("backward_tf32.cu", "disentangled_attention_backward_tf32",
                    dict(flags, aligned=aligned, block_m=BLOCK, block_n=block_n, warps=BLOCK // 16, stages=stages,
                         resident=resident, blocks_per_sm=blocks, own_keys=own_keys, shared_bytes=shared))


def strict_config(head_dim):
    block, rows, positions = STRICT[head_dim]
    return {"block": block, "threads": block * block // 16, "blocks_per_sm": rows, "position_blocks_per_sm": positions}


def backward_keys(flags, aligned, c):
    keys = [rows_key(flags, aligned, c, own_keys) for own_keys in (False, True)]
    terms = flags["c2p"] + flags["p2c"]
    if not terms:
        return keys
    strict = simt.simt_keys(flags, aligned, strict_config(flags["head_dim"]))
    if c[4] == "strict":
        return keys + strict[2:]
    shared = tile_bytes(flags["head_dim"], BLOCK, 32, 8, 2, terms, 2) + 2 * BLOCK * flags["head_dim"] * 4
    shared += 4 * 2 * BLOCK if flags["dropout"] else 0
    positions = simt.key("backward_tf32_positions.cu", "disentangled_attention_backward_tf32_positions",
                         dict(flags, aligned=aligned, block_m=BLOCK, block_n=32, warps=8, stages=2, own_keys=False,
                              shared_bytes=shared))
    return keys + [positions, strict[3]]


class Bench(simt.Bench):
    def tf32_forward(self, problem, c):
        f = problem.forward
        wanted = forward_key(simt.flags_of(problem.case, "f32"), f.aligned, c)
        grid = f.batch * f.heads * ((f.length + c[0] - 1) // c[0])
        return [("forward", self.launch(wanted, grid, 32 * c[2], dict(wanted[2])["shared_bytes"], problem.forward_params()))]

    def tf32_backward(self, problem, c):
        """The strict launches with the kernels of `c` in place of theirs: grids and workspace are the same."""
        f = problem.forward
        keys = backward_keys(simt.flags_of(problem.case, "f32"), f.aligned, c)
        strict = self.simt(problem, strict_config(f.head_dim))
        tiles, params = (f.length + BLOCK - 1) // BLOCK, strict[0][1].keep[0]
        launches = []
        for n, (name, launch) in enumerate(strict):
            p = dict(keys[n][2])
            if "tf32" not in keys[n][0]:
                launches.append((name, launch))
                continue
            grid = params.regions[4] * params.regions[5] * f.heads if n == 2 else f.batch * f.heads * tiles
            launches.append((name, self.launch(keys[n], grid, 32 * p["warps"], p["shared_bytes"], params)))
        return launches


# --- verbs -------------------------------------------------------------------------------------------------------------

def check_plan(few):
    """(case, forward configs, backward configs): every config without a mask, the first one of a head_dim on the rest."""
    small = dict(batch=1 if few else 2, heads=1 if few else 2, buckets=32, longest=64)
    packed = dict(heads=2, buckets=32, longest=48, batch=6, length=300, lengths=[0, 33, 300, 0, 129, 1])
    plan = []
    for dim in (64, 32, 128):
        every = FORWARD[dim], ROWS[dim]
        first = FORWARD[dim][:1], ROWS[dim][:1]
        wide = every if dim == 64 and not few else first
        plan.append((dict(small, head_dim=dim, length=150 if few else 333, mask="holes", dropout=0.2), *wide))
        if few:
            continue
        plan += [(dict(small, head_dim=dim, length=700), *every), (dict(packed, head_dim=dim), *first)]
        plan += [(dict(small, head_dim=dim, length=n), *first) for n in (1, 65, 129)]
    if not few:
        first = FORWARD[64][:1], ROWS[64][:1]
        small["head_dim"] = 64
        plan += [(dict(small, length=200, strided=True), *first)]
        plan += [(dict(small, length=300, c2p=c, p2c=p), *first) for c, p in ((True, False), (False, True), (False, False))]
        plan += [(dict(batch=2, heads=2, head_dim=64, length=n), *first) for n in (513, 2048)]
        plan += [(dict(small, length=200, mask=m, dropout=0.2), *first) for m in ("right", "left", "all", "last")]
    return plan


def check_keys():
    keys = []
    for case, forward, rows in check_plan(False):
        flags, aligned = simt.flags_of(case, "f32"), not case.get("strided")
        keys += [forward_key(flags, aligned, c) for c in forward]
        keys += [k for c in rows for k in backward_keys(flags, aligned, c)]
    return keys


def time_keys(head_dim):
    flags = simt.flags_of(dict(head_dim=head_dim), "f32")
    keys = [forward_key(flags, True, c) for c in FORWARD[head_dim]] + simt.forward_keys(flags, True)[:1]
    return keys + [k for c in ROWS[head_dim] for k in backward_keys(flags, True, c)] + simt.simt_keys(flags, True, strict_config(head_dim))


def compile_all(args):
    keys = [k for d in (64, 32, 128) for k in time_keys(d) if "simt" not in k[0]]
    if args.verb == "prebuild":
        keys = check_keys() + time_keys(64) + time_keys(32) + time_keys(128)
    return simt.compile_all(args, keys)


def check(args):
    bench, failed, done, worst, start = Bench(args.cache), 0, 0, {}, time.monotonic()
    torch, plan = bench.torch, check_plan(args.few)
    for n, (case, forward, rows) in enumerate(plan):
        if time.monotonic() - start > args.seconds:
            print(f"stopped before case {n} of {len(plan)}")
            break
        problem = simt.Backward(case, "f32", n)
        want = problem.reference()
        kept = problem.forward.out.clone(), problem.forward.lse_out.clone()
        runs = [("backward", c, lambda c=c: bench.tf32_backward(problem, c)) for c in rows]
        runs += [("forward", c, lambda c=c: bench.tf32_forward(problem, c)) for c in forward]
        for name, c, make in runs:
            outputs = [("out", problem.forward.out), ("lse", problem.forward.lse_out)] if name == "forward" else \
                [(g, getattr(problem, g)) for g in simt.GRADIENTS if getattr(problem, g) is not None]
            previous = None
            for again in range(2):
                for _, tensor in outputs:
                    tensor.fill_(float("nan"))
                for _, launch in make():
                    launch()
                torch.cuda.synchronize()
                got = [t.clone() for _, t in outputs]
                if previous and any(not torch.equal(a, b) for a, b in zip(previous, got)):
                    failed += 1
                    print("FAILED", name, c, case, "not the same bits again", flush=True)
                previous = got
            for (output, _), tensor in zip(outputs, previous):
                if tensor.numel() == 0:
                    continue
                largest = want[output].abs().max().clamp(min=1.0)   # one visible key: gradients of 0
                error = ((tensor.double() - want[output]).abs().max() / largest).item()
                error = error if torch.isfinite(tensor).all() else math.inf
                done += 1
                worst[case["head_dim"], output] = max(worst.get((case["head_dim"], output), 0.0), error)
                if not error <= LIMIT:
                    failed += 1
                    print(f"FAILED {name} {output} error {error:.3g} {c} {case}", flush=True)
            problem.forward.out.copy_(kept[0])
            problem.forward.lse_out.copy_(kept[1])
    for (dim, output), value in worst.items():
        print(f"head_dim {dim:3} {output:17} largest error {value:.3g}")
    print(f"{done} checks, {failed} failed")
    return failed


def time_all(args):
    bench = Bench(args.cache)
    torch = bench.torch
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")

    def medians(launches):
        times = []
        for sample in range(args.samples + 1):
            flush.zero_()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(len(launches) + 1)]
            events[0].record()
            for n, (_, launch) in enumerate(launches):
                launch()
                events[n + 1].record()
            torch.cuda.synchronize()
            times.append([a.elapsed_time(b) for a, b in zip(events, events[1:])] + [events[0].elapsed_time(events[-1])])
        return [statistics.median(t[n] for t in times[1:]) for n in range(len(launches) + 1)]

    for dim, length in itertools.product(map(int, args.head_dims.split(",")), map(int, args.lengths.split(","))):
        case = dict(batch=max(1, args.tokens // length), heads=12, length=length, head_dim=dim)
        problem = simt.Backward(case, "f32", 1)
        runs = [("forward strict", lambda: bench.forward(problem, "simt"))]
        runs += [(f"forward {c}", lambda c=c: bench.tf32_forward(problem, c)) for c in FORWARD[dim]]
        runs += [("backward strict", lambda: bench.simt(problem, strict_config(dim)))]
        runs += [(f"backward {c}", lambda c=c: bench.tf32_backward(problem, c)) for c in ROWS[dim]]
        strict = {}
        for name, make in runs:
            launches = make()
            found = medians(launches)
            base = strict.setdefault(name.split()[0], found[-1])
            text = " ".join(f"{launch[0]} {t:.3f}" for launch, t in zip(launches, found)) if len(launches) > 1 else ""
            print(f"L {length:5} D {dim} {name:40} {found[-1]:8.3f} ms  x{base / found[-1]:.2f}  {text}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("compile", "prebuild", "check", "time"))
    parser.add_argument("--cache", default=os.path.join(da.ROOT, "..", "build", "da_cache"))
    parser.add_argument("--targets", default="sm_80,sm_90a,sm_100a,sm_120a")
    parser.add_argument("--head-dims", default="64,32,128")
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further case of check after so long")
    parser.add_argument("--few", action="store_true", help="one small case for each head_dim, for compute-sanitizer")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.verb == "prebuild":
        args.targets = "sm_90a"
    return {"compile": compile_all, "prebuild": compile_all, "check": check, "time": time_all}[args.verb](args)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
