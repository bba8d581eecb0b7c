#!/usr/bin/env python3
"""Compiles, checks and times the CUDA templates of the backward pass of disentangled attention without the runtime.

  da_backward.py compile [--only D64]      registers, spills and shared memory of every config (no GPU needed)
  da_backward.py prebuild                  compiles what check and time need (no GPU needed)
  da_backward.py check                     problems against a float64 reference; golden files; repeatability
  da_backward.py time [--lengths 128,512]  median times of every kernel and of the whole pass
  da_backward.py small                     a few small problems, for compute-sanitizer

check, time and small need PyTorch with a CUDA device. Cubins are kept in --cache DIR, by a digest of source and target.
"""
import argparse
import ctypes
import glob
import itertools
import json
import math
import os
import statistics
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dropout_mask  # noqa: E402
from da_kernels import DTYPES, Kernel, Nvrtc, compile_cached, masks, render, report, slot_table  # noqa: E402

KERNELS = ("prepare", "mma_kv", "mma_q", "mma_position", "finish")

# --- configs ---------------------------------------------------------------------------------------------------------

KV_AXES = ("block_q", "far_groups", "stages", "resident", "strip_kept", "blocks_per_sm")
Q_AXES = ("block_k", "far_groups", "stages", "blocks_per_sm")
POSITION_AXES = ("tiles", "stages", "position_blocks")

KV = {32: [(64, 2, 2, 1, 1, 3), (64, 4, 2, 1, 1, 2)],
      64: [(64, 4, 2, 1, 1, 2), (64, 4, 2, 1, 0, 2), (64, 2, 2, 1, 1, 2)],
      128: [(16, 1, 2, 0, 0, 2), (32, 2, 2, 1, 0, 2), (32, 1, 2, 0, 0, 2)]}
Q = {32: [(64, 2, 2, 4), (64, 4, 2, 3)],
     64: [(64, 2, 2, 3), (64, 4, 2, 3), (64, 2, 2, 4), (32, 2, 2, 4), (64, 4, 2, 2)],
     128: [(64, 2, 2, 2), (32, 2, 2, 2)]}
POSITION = {32: [(2, 3, 132), (1, 3, 264)], 64: [(2, 3, 132), (1, 3, 264), (2, 2, 132), (2, 3, 264), (1, 3, 528)],
            128: [(2, 3, 132), (1, 3, 264)]}


def kv_shared(f, c):
    step = c["block_q"] * 2 * f["head_dim"]
    ring = (64 // c["block_q"] + c["stages"]) * step
    total = 2 * c["stages"] * step + ring * (f["c2p"] + f["p2c"]) + (0 if c["resident"] else 2 * 64 * 2 * f["head_dim"])
    return total + c["stages"] * c["block_q"] * 8 + (2 * 2 * c["block_q"] * 4 if f["dropout"] else 0)


def q_shared(f, c):
    step = c["block_k"] * 2 * f["head_dim"]
    near = c["block_k"] * 128 if f["c2p"] or f["p2c"] else 0
    return c["stages"] * (step + max(step, near)) + (64 // c["block_k"] + c["stages"]) * step * f["c2p"]


def kernel_parameters(kernel, flags, config):
    """Template parameters of one kernel; `config`: the choice of every kernel, by name."""
    p = dict(flags)
    if kernel == "mma_kv":
        c = dict(zip(KV_AXES, config["kv"]))
        p.update(c, resident=bool(c["resident"]), strip_kept=bool(c["strip_kept"]), shared_bytes=kv_shared(flags, c))
    elif kernel == "mma_q":
        c = dict(zip(Q_AXES, config["q"]))
        p.update(c, shared_bytes=q_shared(flags, c))
    elif kernel == "mma_position":
        c = dict(zip(POSITION_AXES, config["position"]))
        part = min(64, flags["head_dim"])
        p.update(c, dim_part=part, shared_bytes=c["stages"] * (8192 * c["tiles"] ** 2 + 256 * c["tiles"] * part) + 16)
    elif kernel == "finish":
        c = dict(zip(POSITION_AXES, config["position"]))
        p.update(tiles=c["tiles"], position_blocks=c["position_blocks"])
    return p


def configs_of(head_dim):
    kv, q, position = KV[head_dim], Q[head_dim], POSITION[head_dim]
    return [{"kv": kv[i % len(kv)], "q": q[i % len(q)], "position": position[i % len(position)]}
            for i in range(max(len(kv), len(q), len(position)))]


# --- compiling -------------------------------------------------------------------------------------------------------

def build_cached(nvrtc, cache, key, target):
    name = f"backward_{key[0]}.cu"
    return compile_cached(nvrtc, cache, render(f"disentangled_attention/{name}", dict(key[1])), name, target)


def build_all(args, keys):
    nvrtc, keys = Nvrtc(), list(dict.fromkeys(keys))

    def one(key):
        try:
            return build_cached(nvrtc, args.cache, key, args.target)
        except RuntimeError as error:
            return None, str(error)

    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for (kernel, p), (cubin, log) in zip(keys, pool.map(one, keys)):
            text = " ".join(f"{k}={int(v)}" for k, v in p)
            if cubin is None:
                failed += 1
                print(f"FAILED {kernel} {text}\n{log[:3000]}")
            elif report(log)[1] > 0 or args.verbose:
                print(f"{kernel} registers={report(log)[0]} spills={report(log)[1]} {text}", flush=True)
    print(f"{len(keys)} kernels, {failed} failed")
    return failed


def flags_of(head_dim, dtype, c2p=True, p2c=True, mask=False, packed=False, dropout=False, aligned=True):
    return dict(head_dim=head_dim, dtype=DTYPES[dtype], c2p=c2p, p2c=p2c, mask=mask, packed=packed, dropout=dropout,
                aligned=aligned)


def keys_of(flags, config):
    kernels = [k for k in KERNELS if flags["c2p"] or flags["p2c"] or k not in ("mma_position", "finish")]
    return [(k, tuple(kernel_parameters(k, flags, config).items())) for k in kernels]


def compile_all(args):
    variants = [{}, dict(mask=True), dict(dropout=True), dict(packed=True, aligned=False), dict(c2p=False), dict(p2c=False),
                dict(c2p=False, p2c=False), dict(mask=True, dropout=True)]
    keys = []
    for head_dim, dtype, variant in itertools.product((32, 64, 128), ("bf16", "f16"), variants):
        for config in configs_of(head_dim):
            keys += keys_of(flags_of(head_dim, dtype, **variant), config)
    args.verbose = True
    return build_all(args, [k for k in keys if all(f"{a}" in f"{k}" for a in (args.only or "").split("+"))])


# --- arguments -------------------------------------------------------------------------------------------------------

class DropoutParams(ctypes.Structure):
    _fields_ = [("keys", ctypes.c_uint * 28), ("threshold", ctypes.c_uint * 8), ("fraction", ctypes.c_uint), ("offset", ctypes.c_uint),
                ("scale", ctypes.c_float)]


class BackwardParams(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in
                 ("q k v position_key position_query mask cu_seqlens slots out dout lse dq dk dv d_position_key "
                  "d_position_query workspace").split()] +
                [(f"{n}_{s}", ctypes.c_longlong) for n in "q k v out dout dq dk dv".split() for s in "batch row head".split()] +
                [(f"{n}_{s}", ctypes.c_longlong) for n in
                 "position_key position_query d_position_key d_position_query".split() for s in "row head".split()] +
                [("mask_batch", ctypes.c_longlong), ("tokens", ctypes.c_longlong), ("regions", ctypes.c_longlong * 8)] +
                [(n, ctypes.c_int) for n in "batch heads length band span".split()] +
                [("scale", ctypes.c_float), ("scale_log2", ctypes.c_float), ("dropout", DropoutParams)])


def dropout_params(probability, seed, offset):
    p = DropoutParams()
    p.keys[:], p.threshold[:], p.fraction, p.offset, p.scale = dropout_mask.arguments(probability, seed, offset)
    return p


# --- problems --------------------------------------------------------------------------------------------------------

class Problem:
    def __init__(self, batch, heads, length, head_dim, dtype, c2p=True, p2c=True, mask=None, lengths=None, dropout=0.0,
                 buckets=256, longest=512, strided=False, scale=1.0, seed=0, tensors=None, reference=True):
        import torch
        self.torch = torch
        types = {"f16": torch.float16, "bf16": torch.bfloat16}
        self.batch, self.heads, self.length, self.head_dim, self.dtype = batch, heads, length, head_dim, dtype
        self.c2p, self.p2c, self.packed, self.lengths, self.aligned = c2p, p2c, lengths is not None, lengths, not strided
        self.band, slots, self.span = slot_table(buckets, longest)
        self.type = types[dtype]
        self.factor = 1.0 / math.sqrt(head_dim * (1 + c2p + p2c))
        g = torch.Generator(device="cuda").manual_seed(seed)
        hidden = heads * head_dim
        self.rows = rows = sum(lengths) if self.packed else batch * length
        self.pad = pad = 3 if strided else 0  # an odd row stride: elements aligned to their own size only

        def tensor(n, size=scale):
            data = torch.randn(n, 3 * hidden + pad if strided else hidden, device="cuda", generator=g) * size
            return data.to(self.type)[:, pad:pad + hidden]

        self.q, self.k, self.v, self.dout = tensor(rows), tensor(rows), tensor(rows), tensor(rows, 1.0)
        self.pk, self.pq = tensor(2 * self.span), tensor(2 * self.span)
        for name, value in (tensors or {}).items():
            setattr(self, name, value.to("cuda").to(self.type).reshape(-1, hidden))
        self.slots = torch.tensor(slots, device="cuda", dtype=torch.int32)
        self.mask = masks(torch, mask, batch, length, seed) if isinstance(mask, str) else mask
        self.mask = self.mask.to("cuda").to(torch.uint8).contiguous() if self.mask is not None else None
        starts = [0] + list(itertools.accumulate(lengths)) if self.packed else None
        self.cu = torch.tensor(starts, device="cuda", dtype=torch.int32) if self.packed else None
        self.dropout = dropout_params(dropout, 0x1234567890 + seed, 7) if dropout else None
        self.lse = torch.zeros(max(heads * rows, 1), device="cuda")
        self.out = torch.zeros(rows, hidden, device="cuda", dtype=self.type)
        if reference:
            self.solve()
        else:
            self.lse.fill_(math.log2(length) + 1)
        self.allocate()

    def sequences(self):
        start = 0
        for b in range(self.batch):
            length = self.lengths[b] if self.packed else self.length
            if length:
                yield b, start, length
            start += length

    def solve(self):
        """float64 gradients, one head at a time; sets out and lse as a forward pass would."""
        torch, heads, dim = self.torch, self.heads, self.head_dim
        double = dict(device="cuda", dtype=torch.float64)
        self.want = {n: torch.zeros(self.rows, heads * dim, **double) for n in ("dq", "dk", "dv")}
        self.want.update({n: torch.zeros(2 * self.span, heads * dim, **double) for n in ("dpk", "dpq")})
        for (b, start, length), h in itertools.product(self.sequences(), range(heads)):
            rows, columns = slice(start, start + length), slice(h * dim, (h + 1) * dim)
            q, k, v, dout = (t[rows, columns].double() for t in (self.q, self.k, self.v, self.dout))
            pk, pq = self.pk[:, columns].double(), self.pq[:, columns].double()
            index = torch.arange(length, device="cuda")
            slot = self.slots[(index[:, None] - index[None, :]).clamp(-self.band, self.band) + self.band].long()
            s = q @ k.T
            if self.c2p:
                s += torch.gather(q @ pk.T, 1, slot)
            if self.p2c:
                s += torch.gather(k @ pq.T, 1, slot.T).T
            s *= self.factor
            hidden = None
            if self.mask is not None:
                keep = self.mask[b].bool()
                hidden = ~keep[:, None]
                s = torch.where(hidden, torch.zeros((), **double), s.masked_fill(~keep[None, :], float("-inf")))
            weight = torch.softmax(s, -1)
            base = h * self.rows + start if self.packed else (b * heads + h) * length
            self.lse[base:base + length] = (torch.logsumexp(s, -1) / math.log(2)).float()
            kept = 1.0
            if self.dropout:
                kept = torch.from_numpy(dropout_mask.kept(self.dropout, b * heads + h, length)).cuda()
                kept = kept.double() * self.dropout.scale
            out = (weight * kept) @ v
            self.out[rows, columns] = out.to(self.type)
            ds = weight * ((dout @ v.T) * kept - (out * dout).sum(-1, keepdim=True)) * self.factor
            if hidden is not None:
                ds = ds.masked_fill(hidden, 0.0)
            self.want["dv"][rows, columns] = (weight * kept).T @ dout
            dq, dk = ds @ k, ds.T @ q
            if self.c2p:
                by_slot = torch.zeros(length, 2 * self.span, **double).scatter_add_(1, slot, ds)
                dq += by_slot @ pk
                self.want["dpk"][:, columns] += by_slot.T @ q
            if self.p2c:
                by_slot = torch.zeros(length, 2 * self.span, **double).scatter_add_(1, slot.T.contiguous(), ds.T.contiguous())
                dk += by_slot @ pq
                self.want["dpq"][:, columns] += by_slot.T @ k
            self.want["dq"][rows, columns], self.want["dk"][rows, columns] = dq, dk

    def allocate(self):
        torch, hidden = self.torch, self.heads * self.head_dim

        def output(n):
            return torch.full((n, hidden + self.pad), float("nan"), device="cuda", dtype=self.type)[:, :hidden]

        self.got = {n: output(self.rows) for n in ("dq", "dk", "dv")}
        self.got.update({n: output(2 * self.span) for n, on in (("dpk", self.c2p), ("dpq", self.p2c)) if on})
        tiles = (self.length + 63) // 64
        count = self.heads * (self.rows // 64 + self.batch) if self.packed else self.batch * self.heads * tiles
        bias = self.c2p or self.p2c
        width = min((self.band + 62) // 64, tiles - 1)
        pieces = max((self.parts(p)[0] + self.parts(p)[1] - 1) * p[0] for p in POSITION[self.head_dim])
        sizes = [3 * self.heads * self.rows * 8, count * min(2 * width + 1, tiles) * 8192 if bias else 0,
                 2 * count * 2 * self.head_dim * 4, self.heads * pieces * 2 * 128 * self.head_dim * 4 if bias else 0]
        self.regions = [0] + list(itertools.accumulate((s + 255) // 256 * 256 for s in sizes))
        self.workspace = torch.full((self.regions[-1] + 256,), 255, device="cuda", dtype=torch.uint8)

    def parts(self, position):
        """Parts of a head, and diagonals: backward_distances.cuh."""
        side, _, blocks = position
        tiles = (self.length + 63) // 64
        squares = -(-tiles // side)
        near = min((self.band + 62) // 64, tiles - 1)
        width = min(-(-near // side), squares - 1)
        items = self.batch * (squares * (2 * width + 1) - width * (width + 1))
        return -(-items // -(-items // -(-blocks // self.heads))), 2 * width + 1

    def poison(self):
        self.workspace.fill_(255)
        for t in self.got.values():
            t.fill_(float("nan"))

    def params(self):
        p = BackwardParams()
        views = dict(q=self.q, k=self.k, v=self.v, out=self.out, dout=self.dout, **{n: self.got[n] for n in ("dq", "dk", "dv")})
        for name, t in views.items():
            setattr(p, name, t.data_ptr())
            setattr(p, name + "_row", t.stride(0))
            setattr(p, name + "_batch", t.stride(0) * self.length)
            setattr(p, name + "_head", self.head_dim)
        tables = dict(position_key=self.pk, position_query=self.pq, d_position_key=self.got.get("dpk"),
                      d_position_query=self.got.get("dpq"))
        for name, t in tables.items():
            if t is not None:
                setattr(p, name, t.data_ptr())
                setattr(p, name + "_row", t.stride(0))
                setattr(p, name + "_head", self.head_dim)
        p.mask, p.mask_batch = (self.mask.data_ptr(), self.mask.stride(0)) if self.mask is not None else (None, 0)
        p.cu_seqlens = self.cu.data_ptr() if self.packed else None
        p.slots, p.lse, p.workspace = self.slots.data_ptr(), self.lse.data_ptr(), self.workspace.data_ptr()
        p.tokens, p.batch, p.heads, p.length = self.rows, self.batch, self.heads, self.length
        p.band, p.span, p.scale, p.scale_log2 = self.band, self.span, self.factor, self.factor * math.log2(math.e)
        for i, at in enumerate(self.regions):
            p.regions[i] = at
        if self.dropout:
            p.dropout = self.dropout
        return p

    def flags(self):
        return flags_of(self.head_dim, self.dtype, self.c2p, self.p2c, self.mask is not None, self.packed,
                        self.dropout is not None, self.aligned)

    def blocks(self, kernel, config):
        pairs, tiles = self.batch * self.heads, (self.length + 63) // 64
        tables = self.c2p + self.p2c
        rows = 256 // (self.head_dim // 8)
        return {"prepare": pairs * -(-self.length // rows), "mma_kv": pairs * tiles, "mma_q": pairs * tiles,
                "mma_position": self.heads * self.parts(config["position"])[0] * -(-self.head_dim // 64),
                "finish": tables * self.heads * (2 + -(-2 * self.span // 8))}[kernel]


class Bench:
    threads = {"prepare": 256, "mma_kv": 128, "mma_q": 128, "mma_position": 256, "finish": 256}

    def __init__(self, args):
        import torch
        self.torch, self.args, self.nvrtc, self.kernels = torch, args, None, {}
        torch.zeros(1, device="cuda")

    def kernel(self, key):
        if key not in self.kernels:
            self.nvrtc = self.nvrtc or Nvrtc()
            cubin, log = build_cached(self.nvrtc, self.args.cache, key, self.args.target)
            kernel = Kernel(cubin, f"disentangled_attention_backward_{key[0]}")
            kernel.prepare(dict(key[1]).get("shared_bytes", 0))
            kernel.registers, kernel.spills = report(log)
            self.kernels[key] = kernel
        return self.kernels[key]

    def launches(self, problem, config):
        """(name, callable) of every kernel, in order."""
        params, out = problem.params(), []
        stream = self.torch.cuda.current_stream().cuda_stream
        for key in keys_of(problem.flags(), config):
            kernel, blocks = self.kernel(key), problem.blocks(key[0], config)
            out.append((key[0], lambda k=kernel, b=blocks, n=key[0]: k.launch(b, self.threads[n], params, stream)))
        return out

    def execute(self, problem, config):
        if problem.rows:
            for _, launch in self.launches(problem, config):
                launch()
        self.torch.cuda.synchronize()

    def errors(self, problem):
        torch, result = self.torch, {}
        for name, got in problem.got.items():
            want = problem.want[name]
            if want.numel() == 0:
                continue
            error = (got.double() - want).abs().max() / want.abs().max().clamp(min=1e-3)
            result[name] = error.item() if torch.isfinite(got).all() else float("inf")
        return result


# --- check -----------------------------------------------------------------------------------------------------------

LENGTHS = [1, 2, 17, 33, 63, 64, 65, 127, 129, 200, 257, 513, 640, 1021]
MODES = [(True, True), (True, False), (False, True), (False, False)]


def check_cases():
    cases = []
    for n, length in enumerate(LENGTHS):
        c2p, p2c = MODES[n % 4 if n % 3 == 0 else 0]
        cases.append(dict(batch=2, heads=3, length=length, head_dim=(64, 32, 128)[n % 3], dtype=("bf16", "f16")[n % 2], c2p=c2p,
                          p2c=p2c, buckets=(256, 16)[n % 2], longest=(512, 40)[n % 2]))
    for kind in ("right", "left", "holes", "all", "last", "half"):
        cases.append(dict(batch=3, heads=2, length=700, head_dim=64, dtype="bf16", mask=kind))
        cases.append(dict(batch=2, heads=1, length=300, head_dim=64, dtype="bf16", mask=kind, buckets=16, longest=40))
    for head_dim in (32, 128):
        cases.append(dict(batch=2, heads=2, length=300, head_dim=head_dim, dtype="f16", mask="holes", buckets=16, longest=40))
        cases.append(dict(batch=1, heads=2, length=1500, head_dim=head_dim, dtype="bf16"))
    for c2p, p2c in MODES:
        cases.append(dict(batch=1, heads=2, length=900, head_dim=64, dtype="bf16", c2p=c2p, p2c=p2c, buckets=32, longest=64))
    for head_dim in (32, 64, 128):
        lengths = [0, 5, 800, 0, 129, 1, 64, 0]
        cases.append(dict(batch=8, heads=2, length=800, head_dim=head_dim, dtype="bf16", lengths=lengths))
        cases.append(dict(batch=2, heads=2, length=333, head_dim=head_dim, dtype="bf16", dropout=0.1, buckets=16, longest=40))
    cases += [dict(batch=3, heads=2, length=200, head_dim=64, dtype="bf16", lengths=[200, 77, 150], buckets=16, longest=40),
              dict(batch=2, heads=2, length=700, head_dim=64, dtype="f16", dropout=0.25),
              dict(batch=2, heads=2, length=333, head_dim=64, dtype="bf16", dropout=0.1, mask="holes", buckets=16, longest=40),
              dict(batch=2, heads=2, length=200, head_dim=64, dtype="bf16", strided=True, mask="right", buckets=16, longest=40),
              dict(batch=1, heads=2, length=600, head_dim=64, dtype="f16", scale=4.0),
              dict(batch=1, heads=1, length=200, head_dim=64, dtype="f16", buckets=0, longest=100),
              dict(batch=2, heads=2, length=2048, head_dim=64, dtype="bf16"),
              dict(batch=1, heads=2, length=4096, head_dim=64, dtype="f16")]
    return cases


def case_flags(case):
    return flags_of(case["head_dim"], case["dtype"], case.get("c2p", True), case.get("p2c", True), case.get("mask") is not None,
                    "lengths" in case, bool(case.get("dropout")), not case.get("strided", False))


def check_plan(full):
    plan = []
    for n, case in enumerate(check_cases()):
        configs = configs_of(case["head_dim"])
        every = full or (case["head_dim"] == 64 and len(case_flags(case)) and n in (0, 12, 14))
        plan += [(case, c) for c in (configs if every else configs[:1])]
    return plan


GOLDEN = {"U8": "uint8", "BF16": "bfloat16", "F32": "float32"}


def golden_cases(folder):
    cases = []
    for path in sorted(glob.glob(os.path.join(folder, "da_*.safetensors"))):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        case = json.loads(header.pop("__metadata__")["case"])
        cases.append((os.path.basename(path), case, header, data[8 + size:]))
    return cases


def golden_arguments(case):
    return dict(batch=case["B"], heads=case["H"], length=case["L"], head_dim=case["D"], c2p=case["c2p"], p2c=case["p2c"],
                buckets=case["position_buckets"], longest=case["max_relative_positions"])


def golden_flags(case, dtype):
    return flags_of(case["D"], dtype, case["c2p"], case["p2c"], case["mask"] != "none")


def planned_keys(args):
    keys = []
    for case, config in check_plan(args.full):
        keys += keys_of(case_flags(case), config)
    for case in small_cases():
        keys += keys_of(case_flags(case), configs_of(case["head_dim"])[0])
    for _, case, _, _ in golden_cases(args.golden):
        keys += keys_of(golden_flags(case, "bf16"), configs_of(case["D"])[0])
    return keys


def check(args):
    bench, failed, worst, solved = Bench(args), 0, {}, {}
    torch = bench.torch

    def judge(label, problem, config):
        nonlocal failed
        problem.poison()
        try:
            bench.execute(problem, config)
        except RuntimeError as error:
            print("FAILED", label, config, str(error)[:200], flush=True)
            sys.exit(1)
        errors = bench.errors(problem)
        for name, e in errors.items():
            worst[name, problem.dtype] = max(worst.get((name, problem.dtype), 0.0), e)
        if not all(e <= 2e-2 for e in errors.values()):
            failed += 1
            if failed < 30:
                print("FAILED", {k: f"{e:.3g}" for k, e in errors.items()}, config, label, flush=True)

    plan = check_plan(args.full)
    for n, (case, config) in enumerate(plan):
        label = json.dumps(case)
        if label not in solved:
            solved.clear()
            solved[label] = Problem(seed=n, **case)
        problem = solved[label]
        judge(label, problem, config)
        first = {k: t.clone() for k, t in problem.got.items()}
        problem.poison()
        bench.execute(problem, config)
        if not all(torch.equal(first[k].view(torch.int16), t.contiguous().view(torch.int16)) if t.numel() else True
                   for k, t in problem.got.items()):
            failed += 1
            print("FAILED not repeatable", config, label, flush=True)
    for name, case, header, data in golden_cases(args.golden):
        tensors = {}
        for key, entry in header.items():
            a, b = entry["data_offsets"]
            tensors[key] = torch.frombuffer(bytearray(data[a:b]), dtype=getattr(torch, GOLDEN[entry["dtype"]])).view(entry["shape"])
        mask = tensors["in.keep"].bool() if case["mask"] != "none" else None
        given = {n: tensors["in." + g] for n, g in (("q", "q"), ("k", "k"), ("v", "v"), ("dout", "do"), ("pk", "pk"), ("pq", "pq"))
                 if "in." + g in tensors}
        problem = Problem(dtype="bf16", mask=mask, tensors=given, **golden_arguments(case))
        for key in problem.got:
            want = tensors["out." + key].to("cuda").double().view(problem.want[key].shape)
            if not torch.allclose(want, problem.want[key], rtol=1e-4, atol=1e-5):
                failed += 1
                print("FAILED the reference differs from", name, key)
            problem.want[key] = want
        judge(name, problem, configs_of(case["D"])[0])
    failed += check_batches(bench)
    for key, value in sorted(worst.items()):
        print(f"{key[0]:4} {key[1]:5} largest error {value:.3g}")
    print(f"{len(plan)} checks, {failed} failed")
    return failed


def check_batches(bench):
    """Four batches at once give what each gives alone; a mask of ones gives what no mask gives."""
    torch, failed = bench.torch, 0
    config = configs_of(64)[0]
    whole = Problem(4, 2, 700, 64, "bf16", seed=5)
    bench.execute(whole, config)
    for b in range(4):
        rows = slice(b * 700, (b + 1) * 700)
        one = Problem(1, 2, 700, 64, "bf16", tensors={n: getattr(whole, n)[rows] for n in ("q", "k", "v", "dout")} |
                      {"pk": whole.pk, "pq": whole.pq})
        one.out, one.lse = whole.out[rows].contiguous(), whole.lse[b * 1400:(b + 1) * 1400].clone()
        bench.execute(one, config)
        for n in ("dq", "dk", "dv"):
            if not torch.equal(one.got[n], whole.got[n][rows]):
                failed += 1
                print("FAILED batch", b, "differs alone:", n)
    kept = Problem(4, 2, 700, 64, "bf16", seed=5, mask=torch.ones(4, 700, dtype=torch.bool))
    bench.execute(kept, config)
    for n in whole.got:
        if not torch.equal(kept.got[n], whole.got[n]):
            failed += 1
            print("FAILED a mask of ones differs from no mask:", n)
    return failed


# --- time ------------------------------------------------------------------------------------------------------------

def timed_configs(args):
    configs = configs_of(args.head_dim)
    return configs[:args.configs] if args.configs else configs


def timed_flags(args):
    return flags_of(args.head_dim, args.dtype, args.bias, args.bias, dropout=args.dropout > 0)


def time_all(args):
    bench = Bench(args)
    torch = bench.torch
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for length in map(int, args.lengths.split(",")):
        problem = Problem(max(1, args.tokens // length), 12, length, args.head_dim, args.dtype, args.bias, args.bias,
                          dropout=args.dropout, reference=False)
        # Plausible statistics: a forward pass of plain attention would leave lse near this.
        problem.lse.fill_(math.log2(length) + 0.7)
        problem.out.copy_(torch.randn_like(problem.out, dtype=torch.float32) * 0.1)
        rows = {}
        for config in timed_configs(args):
            launches = bench.launches(problem, config)
            samples = []
            for sample in range(args.samples + 2):
                flush.zero_()
                events = [torch.cuda.Event(enable_timing=True) for _ in range(len(launches) + 1)]
                events[0].record()
                for event, (_, launch) in zip(events[1:], launches):
                    launch()
                    event.record()
                torch.cuda.synchronize()
                samples.append([a.elapsed_time(b) for a, b in zip(events, events[1:])] + [events[0].elapsed_time(events[-1])])
            names = [n for n, _ in launches] + ["total"]
            for n, values in zip(names, zip(*samples[2:])):
                label = {"mma_kv": str(config["kv"]), "mma_q": str(config["q"]), "mma_position": str(config["position"])}.get(n, "")
                values = sorted(values)
                rows.setdefault((n, label), []).append((statistics.median(values), values[0], values[int(0.9 * (len(values) - 1))]))
            total = []
            for sample in range(args.samples + 2):
                flush.zero_()
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                for _, launch in launches:
                    launch()
                b.record()
                torch.cuda.synchronize()
                total.append(a.elapsed_time(b))
            total = sorted(total[2:])
            rows.setdefault(("whole", str(config["kv"]) + str(config["q"])), []).append(
                (statistics.median(total), total[0], total[int(0.9 * (len(total) - 1))]))
        print(f"L {length}  workspace {problem.workspace.numel() >> 20} MiB")
        for (n, label), values in sorted(rows.items(), key=lambda r: (r[0][0], min(r[1]))):
            median, low, high = min(values)
            print(f"  {n:13} {median:.4f} (min {low:.4f}, p90 {high:.4f}) {label}", flush=True)
        del problem
    return 0


def prebuild(args):
    keys = [] if args.time_only else planned_keys(args)
    for config in timed_configs(args):
        keys += keys_of(timed_flags(args), config)
    return build_all(args, keys)


def small_cases():
    """Far and near tiles, hidden rows, dropout, empty sequences, ends of tiles: little enough for compute-sanitizer."""
    short = dict(heads=1, dtype="bf16", buckets=16, longest=40)
    return [dict(short, batch=1, length=200, head_dim=64), dict(short, batch=1, length=150, head_dim=64, mask="holes", dropout=0.1),
            dict(short, batch=1, length=200, head_dim=32), dict(short, batch=1, length=200, head_dim=128),
            dict(short, batch=3, length=170, head_dim=64, lengths=[170, 0, 33])]


def small(args):
    bench = Bench(args)
    for n, case in enumerate(small_cases()):
        problem = Problem(seed=n, **case)
        if args.empty:
            problem.workspace = bench.torch.empty_like(problem.workspace)
        else:
            problem.poison()
        bench.execute(problem, configs_of(case["head_dim"])[0])
        print({k: f"{e:.3g}" for k, e in bench.errors(problem).items()}, case, flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("verb", choices=("compile", "prebuild", "check", "time", "small"))
    parser.add_argument("--cache", default=os.path.join(here, "..", "build", "da_backward_cache"))
    parser.add_argument("--golden", default=os.path.join(here, "..", "tests", "data"))
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--only", help="substrings joined by + that a kernel's parameters must contain")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--full", action="store_true", help="every config on every case")
    parser.add_argument("--time-only", action="store_true", help="prebuild: not what check needs")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--no-bias", dest="bias", action="store_false")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--configs", type=int, default=0, help="time only the first so many")
    parser.add_argument("--lengths", default="128,512,1024,2048,4096,8192")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--empty", action="store_true", help="small: leave the workspace as allocated, for initcheck")
    args = parser.parse_args()
    verbs = {"compile": compile_all, "prebuild": prebuild, "check": check, "time": time_all, "small": small}
    return verbs[args.verb](args)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
