#!/usr/bin/env python3
"""Checks and times the fp32 kernels of the backward pass (simt and reference), and dropout of the forward ones.

  da_backward_simt.py compile [--targets sm_80,sm_90a,sm_100a,sm_120a]   registers and spills (no GPU needed)
  da_backward_simt.py prebuild                                           compiles what check and time need (no GPU)
  da_backward_simt.py check                                              gradients against PyTorch in float64
  da_backward_simt.py time [--lengths 512,2048]                          median times, kernel by kernel
  da_backward_simt.py reference                                          one pass of the plain kernels at length 8192

Cubins are kept in --cache DIR. See da_kernels.py.
"""
import argparse
import ctypes
import hashlib
import math
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import da_kernels as da
import dropout_mask

CONFIGS = {64: [(64, 2, 2), (64, 2, 1), (64, 1, 1), (32, 6, 4), (32, 4, 4)], 128: [(64, 1, 1), (32, 2, 2)]}
CONFIGS[32] = CONFIGS[64]   # by head_dim: block, blocks_per_sm, position_blocks_per_sm
DIM_STEP = 16
FORWARD = {"block_m": 64, "block_n": 64, "threads": 256, "dim_step": 16, "blocks_per_sm": 2}
LIMIT = {"f32": 2e-4, "f16": 2e-2, "bf16": 2e-2}
SEED, OFFSET = 0x5eed0123456789ab, 7


# --- kernels ---------------------------------------------------------------------------------------------------------

def shared_bytes(c, head_dim, terms, dropout):
    warp_rows = 512 // c["block"]
    strips = terms * 2 * c["block"] * (DIM_STEP + 4)
    pairs = c["block"] * (c["block"] + warp_rows + 4)
    return 4 * (4 * c["block"] * (head_dim + 4) + max(pairs, strips) + 3 * c["block"] + (2 * c["block"] if dropout else 0))


def flags_of(case, dtype):
    return {"head_dim": case["head_dim"], "dtype": da.DTYPES[dtype], "c2p": case.get("c2p", True), "p2c": case.get("p2c", True),
            "mask": case.get("mask", "none") != "none", "packed": "lengths" in case, "lse": False,
            "dropout": case.get("dropout", 0) > 0}


def parts_of(c, head_dim):
    return max(1, 4 * c["block"] * head_dim // c["threads"] // 128)


def key(template, name, p):
    return template, name, tuple(p.items())


def simt_keys(flags, aligned, c):
    terms = flags["c2p"] + flags["p2c"]
    p = dict(flags, aligned=aligned, block=c["block"], threads=c["threads"], dim_step=DIM_STEP,
             shared_bytes=shared_bytes(c, flags["head_dim"], terms, flags["dropout"]))
    name = "disentangled_attention_backward_simt"
    keys = [key("backward_simt.cu", name, dict(p, blocks_per_sm=c["blocks_per_sm"], own_keys=k)) for k in (False, True)]
    if terms:
        keys.append(key("backward_simt_positions.cu", name + "_positions",
                        dict(p, blocks_per_sm=c["position_blocks_per_sm"], own_keys=False, parts=parts_of(c, flags["head_dim"]))))
        keys.append(key("backward_simt_tables.cu", name + "_tables",
                        dict(flags, mask=False, packed=False, dropout=False, block=c["block"], threads=256)))
    return keys


def reference_keys(flags):
    name = "disentangled_attention_backward_reference_"
    kernels = ["rows", "columns"] + (["tables"] if flags["c2p"] or flags["p2c"] else [])
    return [key("backward_reference.cu", name + k, flags) for k in kernels]


def forward_keys(flags, aligned):
    shared = da.simt_shared_bytes(FORWARD, flags["head_dim"], flags["c2p"], flags["p2c"], flags["mask"], flags["dropout"])
    return [key("forward_simt.cu", "disentangled_attention_forward_simt",
                dict(flags, lse=True, **FORWARD, aligned=aligned, shared_bytes=shared)),
            key("forward_reference.cu", "disentangled_attention_forward_reference", dict(flags, lse=True))]


def build(nvrtc, cache, kernel, target):
    template, _, p = kernel
    source = da.render("disentangled_attention/" + template, dict(p))
    path = os.path.join(cache, hashlib.sha256(f"{target} {source}".encode()).hexdigest()[:32])
    if not os.path.exists(path + ".cubin"):
        cubin, log = nvrtc.compile(source, template, target)
        os.makedirs(cache, exist_ok=True)
        for name, data in ((".log", log.encode()), (".cubin", cubin)):
            with open(path + name + ".part", "wb") as out:
                out.write(data)
            os.rename(path + name + ".part", path + name)
    return open(path + ".cubin", "rb").read(), open(path + ".log").read()


def dropout_params(probability):
    p = da.DropoutParams()
    p.keys[:], p.threshold[:], p.fraction, p.offset, p.scale = dropout_mask.arguments(probability, SEED, OFFSET)
    return p


# --- problems ----------------------------------------------------------------------------------------------------------

GRADIENTS = ["dq", "dk", "dv", "d_position_key", "d_position_query"]


class BackwardParams(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in
                 ("q k v position_key position_query mask cu_seqlens slots out dout lse dq dk dv d_position_key d_position_query "
                  "workspace").split()] +
                [(f"{t}_{a}", ctypes.c_longlong) for t in "q k v out dout dq dk dv".split() for a in ("batch", "row", "head")] +
                [(f"{t}_{a}", ctypes.c_longlong) for t in
                 "position_key position_query d_position_key d_position_query".split() for a in ("row", "head")] +
                [("mask_batch", ctypes.c_longlong), ("tokens", ctypes.c_longlong), ("regions", ctypes.c_longlong * 8)] +
                [(n, ctypes.c_int) for n in "batch heads length band span".split()] +
                [("scale", ctypes.c_float), ("scale_log2", ctypes.c_float), ("dropout", da.DropoutParams)])


class Backward:
    """A da.Problem with gradients, its float64 reference, and the launches of a tier."""

    def __init__(self, case, dtype, seed):
        import torch
        self.torch, self.case, self.dtype = torch, case, dtype
        arguments = {k: v for k, v in case.items() if k not in ("dropout", "mask")}
        mask = da.masks(torch, case.get("mask", "none"), case["batch"], case["length"], seed)
        self.forward = da.Problem(dtype=dtype, mask=mask, seed=seed, lse=True, **arguments)
        f = self.forward
        self.dropout = dropout_params(case["dropout"]) if case.get("dropout", 0) else None
        g = torch.Generator(device="cuda").manual_seed(seed + 1)
        self.dout = torch.randn(f.out.shape, device="cuda", generator=g).to(f.out.dtype)
        nan = lambda like: torch.full(like.shape, float("nan"), device="cuda", dtype=like.dtype)
        self.dq, self.dk, self.dv = nan(f.out), nan(f.out), nan(f.out)
        self.d_position_key = nan(f.pk) if f.c2p else None
        self.d_position_query = nan(f.pq) if f.p2c else None

    def reference(self):
        """float64: out, lse, then the gradients, by name; and sets out and lse as the forward pass would."""
        torch, f = self.torch, self.forward
        rows, heads, dim = f.q.shape[0], f.heads, f.head_dim
        want = {n: torch.zeros(f.out.shape, device="cuda", dtype=torch.float64) for n in ("out", "dq", "dk", "dv")}
        want["lse"] = torch.zeros(f.lse_out.shape, device="cuda", dtype=torch.float64)
        pk, pq = (t.double().view(-1, heads, dim).permute(1, 0, 2) for t in (f.pk, f.pq))
        dpk, dpq = torch.zeros_like(pk), torch.zeros_like(pq)
        start = 0
        for b in range(f.batch):
            n = f.lengths[b] if f.packed else f.length
            if n == 0:
                continue
            part = slice(start, start + n)
            split = lambda t: t[part].double().view(n, heads, dim).transpose(0, 1)
            q, k, v, dout = split(f.q), split(f.k), split(f.v), split(self.dout)
            at = torch.arange(n, device="cuda")
            slot = f.slots[(at[:, None] - at[None, :]).clamp(-f.band, f.band) + f.band].long()
            s = q @ k.transpose(1, 2)
            if f.c2p:
                s += torch.gather(q @ pk.transpose(1, 2), 2, slot.expand(heads, -1, -1))
            if f.p2c:
                s += torch.gather(k @ pq.transpose(1, 2), 2, slot.t().expand(heads, -1, -1)).transpose(1, 2)
            s *= f.factor
            shown = torch.ones(n, dtype=torch.bool, device="cuda")
            if f.mask is not None:
                shown = f.mask[b].bool()
                s = s.masked_fill(~shown[None, None, :], float("-inf"))
                s = torch.where(shown[None, :, None], s, torch.zeros((), device="cuda", dtype=torch.float64))
            weight = torch.softmax(s, -1)
            factor = torch.ones_like(weight)
            if self.dropout:
                for h in range(heads):
                    kept = torch.from_numpy(dropout_mask.kept(self.dropout, b * heads + h, n)).cuda()
                    factor[h] = kept.double() / (1 - self.case["dropout"])
            join = lambda t: t.transpose(0, 1).reshape(n, -1)
            out = (weight * factor) @ v
            delta = (out * dout).sum(-1, keepdim=True)
            ds = weight * (dout @ v.transpose(1, 2) * factor - delta) * f.factor * shown[None, :, None]
            want["out"][part] = join(out)
            log = torch.logsumexp(s, -1) / math.log(2)
            for h in range(heads):
                base = h * rows + start if f.packed else (b * heads + h) * n
                want["lse"][base:base + n] = log[h]
            by_slot = lambda sums, index, m: m.scatter_add(2, index.expand(heads, -1, -1), sums)
            slots = pk.shape[1]
            rows_by_slot = by_slot(ds, slot, torch.zeros(heads, n, slots, device="cuda", dtype=torch.float64))
            keys_by_slot = by_slot(ds.transpose(1, 2), slot.t(), torch.zeros(heads, n, slots, device="cuda", dtype=torch.float64))
            dq, dk = ds @ k, ds.transpose(1, 2) @ q
            if f.c2p:
                dq += rows_by_slot @ pk
                dpk += rows_by_slot.transpose(1, 2) @ q
            if f.p2c:
                dk += keys_by_slot @ pq
                dpq += keys_by_slot.transpose(1, 2) @ k
            want["dq"][part], want["dk"][part] = join(dq), join(dk)
            want["dv"][part] = join((weight * factor).transpose(1, 2) @ dout)
            start += n
        flat = lambda t: t.permute(1, 0, 2).reshape(slots_of(t), -1)
        slots_of = lambda t: t.shape[1]
        if f.c2p:
            want["d_position_key"] = flat(dpk)
        if f.p2c:
            want["d_position_query"] = flat(dpq)
        f.out.copy_(want["out"])
        f.lse_out.copy_(want["lse"])
        return want

    def params(self):
        f, p = self.forward, BackwardParams()
        given = f.params()
        for name, _ in da.ForwardParams._fields_:
            if name not in ("workspace", "dropout"):
                setattr(p, name, getattr(given, name))
        for name in ["dout"] + GRADIENTS:
            tensor = getattr(self, name)
            if tensor is None:
                continue
            setattr(p, name, tensor.data_ptr())
            setattr(p, name + "_row", tensor.stride(0))
            setattr(p, name + "_head", f.head_dim)
            if "position" not in name:
                setattr(p, name + "_batch", tensor.stride(0) * f.length)
        p.scale = f.factor
        if self.dropout:
            p.dropout = self.dropout
        return p

    def forward_params(self):
        p = self.forward.params()
        if self.dropout:
            p.dropout = self.dropout
        return p


class Bench:
    def __init__(self, cache):
        import torch
        self.torch, self.nvrtc, self.cache, self.kernels = torch, None, cache, {}
        torch.zeros(1, device="cuda")
        major, minor = torch.cuda.get_device_capability()
        self.target = f"sm_{major}{minor}" + ("a" if (major, minor) in ((9, 0), (10, 0), (12, 0)) else "")

    def kernel(self, wanted, shared):
        if wanted not in self.kernels:
            self.nvrtc = self.nvrtc or da.Nvrtc()
            cubin, log = build(self.nvrtc, self.cache, wanted, self.target)
            self.kernels[wanted] = da.Kernel(cubin, wanted[1])
        self.kernels[wanted].prepare(shared)
        return self.kernels[wanted]

    def workspace(self, size):
        self.memory = self.torch.full((size // 4 + 64,), float("nan"), device="cuda")
        return self.memory.data_ptr()

    def simt(self, problem, c):
        """Launches, by name."""
        f, case = problem.forward, problem.case
        flags = flags_of(case, problem.dtype)
        terms, block, dim = f.c2p + f.p2c, c["block"], f.head_dim
        shared = shared_bytes(c, dim, terms, flags["dropout"])
        tiles, p, at, params = (f.length + block - 1) // block, None, 0, problem.params()
        diagonals = 2 * min((f.band + block - 2) // block, tiles - 1) + 1 if terms else 0
        splits = min(max(f.batch * tiles // 16, 1), max(1, 1024 // (f.heads * diagonals))) if terms else 0
        shares = f.batch * f.heads * tiles * 2 * dim if terms else 0
        sizes = [f.q.shape[0] * f.heads, shares, shares, splits * f.heads * diagonals * terms * 2 * block * dim]
        for n, floats in enumerate(sizes):
            params.regions[n] = at
            at += (floats * 4 + 255) // 256 * 256
        params.regions[4], params.regions[5] = splits, diagonals
        params.workspace = self.workspace(at)
        keys = simt_keys(flags, f.aligned, c)
        grid = f.batch * f.heads * tiles
        grids = [grid, grid, diagonals * splits * f.heads * parts_of(c, dim), terms * f.heads * 2 * f.span]
        threads = [c["threads"]] * 3 + [256]
        names = ["dq", "dk dv", "positions", "tables"]
        return [(names[n], self.launch(k, grids[n], threads[n], shared if n < 3 else 0, params)) for n, k in enumerate(keys)]

    def reference(self, problem):
        f, params = problem.forward, problem.params()
        parts = min(max(384 // (f.batch * f.heads), 1), (f.length + 15) // 16)
        blocks = f.batch * f.heads * parts
        params.regions[1] = parts
        params.workspace = self.workspace(blocks * 4 * f.span * f.head_dim * 8)
        grids = [blocks, f.batch * f.heads * ((f.length + 15) // 16), (4 * f.span * f.heads * f.head_dim + 255) // 256]
        keys = reference_keys(flags_of(problem.case, problem.dtype))
        return [(k[1].rsplit("_", 1)[1], self.launch(k, grids[n], 256, 0, params)) for n, k in enumerate(keys)]

    def forward(self, problem, which):
        f = problem.forward
        keys = forward_keys(flags_of(problem.case, problem.dtype), f.aligned)
        if which == "simt":
            grid = f.batch * f.heads * ((f.length + 63) // 64)
            return [("forward", self.launch(keys[0], grid, 256, dict(keys[0][2])["shared_bytes"], problem.forward_params()))]
        return [("forward", self.launch(keys[1], f.batch * f.heads * f.length, 128, 0, problem.forward_params()))]

    def launch(self, wanted, grid, threads, shared, params):
        kernel = self.kernel(wanted, shared)
        stream = self.torch.cuda.current_stream().cuda_stream
        run = lambda: kernel.launch(grid, threads, params, stream)
        run.keep = params, self.memory if hasattr(self, "memory") else None
        return run


# --- verbs -------------------------------------------------------------------------------------------------------------

def check_cases():
    """(case, dtype)"""
    base = dict(batch=2, heads=2, head_dim=64)
    small = dict(base, buckets=32, longest=64)
    cases = [(dict(base, length=n), "f32") for n in (1, 17, 33, 129, 513, 1021)]
    cases += [(dict(small, length=n), "f32") for n in (63, 65, 300, 700)]
    cases += [(dict(small, length=200, mask=m), "f32") for m in ("right", "left", "holes", "all", "last", "half")]
    cases += [(dict(small, length=n, mask="holes", dropout=p), "f32") for n, p in ((33, 0.5), (129, 0.1), (513, 0.3))]
    packed = dict(heads=2, head_dim=64, buckets=32, longest=48)
    cases += [(dict(packed, batch=6, length=300, lengths=[0, 33, 300, 0, 129, 1]), "f32"),
              (dict(packed, batch=3, length=64, lengths=[17, 64, 0]), "f32"), (dict(packed, batch=1, length=1, lengths=[0]), "f32")]
    cases += [(dict(small, length=300, c2p=c, p2c=p), "f32") for c, p in ((True, False), (False, True), (False, False))]
    cases += [(dict(small, length=200, strided=True), "f32"), (dict(small, length=200, buckets=0, longest=40), "f32")]
    cases += [(dict(small, length=257, head_dim=32), "f32"),
              (dict(small, length=257, head_dim=128, mask="holes", dropout=0.1), "f32")]
    cases += [(dict(base, length=600), "bf16"), (dict(packed, batch=4, length=257, lengths=[257, 0, 64, 5], dropout=0.2), "f16")]
    cases += [(dict(small, batch=1, heads=1, length=2048), "f32")]
    return cases


def configs_of(head_dim):
    return [{"block": block, "threads": block * block // 16, "blocks_per_sm": rows, "position_blocks_per_sm": positions}
            for block, rows, positions in CONFIGS[head_dim]]


def checked_configs(case):
    """One of large tiles, one of small ones."""
    return [next(c for c in configs_of(case["head_dim"]) if c["block"] == b) for b in (64, 32)]


def check_keys():
    keys = []
    for case, dtype in check_cases():
        flags, aligned = flags_of(case, dtype), not case.get("strided")
        for c in checked_configs(case):
            keys += simt_keys(flags, aligned, c)
        keys += reference_keys(flags) + forward_keys(flags, aligned)
    return keys


def time_keys(args):
    flags = flags_of(dict(head_dim=args.head_dim), args.dtype)
    return [k for c in configs_of(args.head_dim) for k in simt_keys(flags, True, c)]


def compile_all(args, keys=None):
    nvrtc, keys = da.Nvrtc(), list(dict.fromkeys(keys or check_keys() + time_keys(args)))
    failures, report = 0, {}

    def one(job):
        try:
            return job, build(nvrtc, args.cache, job[0], job[1])[1]
        except RuntimeError as error:
            return job, error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (k, target), log in pool.map(one, [(k, t) for k in keys for t in args.targets.split(",")]):
            if isinstance(log, RuntimeError):
                failures += 1
                print("FAILED", target, k, str(log)[:2000])
                continue
            registers, spills = da.report(log)
            if args.verbose or "warning" in log or spills:
                p = dict(k[2])
                print(f"{target} {k[0]} registers={registers} spills={spills} " + " ".join(f"{n}={int(v)}" for n, v in p.items()))
            if "warning" in log:
                print(log)
    print(f"{len(keys)} kernels for {args.targets}, {failures} failed")
    return failures


def check(args):
    bench, failed, done, worst = Bench(args.cache), 0, 0, {}
    torch = bench.torch
    for n, (case, dtype) in enumerate(check_cases()):
        problem = Backward(case, dtype, n)
        want = problem.reference()
        kept = problem.forward.out.clone(), problem.forward.lse_out.clone()
        runs = [(f"simt {c['block']}", lambda c=c: bench.simt(problem, c)) for c in checked_configs(case)]
        runs += [("reference", lambda: bench.reference(problem)), ("forward simt", lambda: bench.forward(problem, "simt")),
                ("forward reference", lambda: bench.forward(problem, "reference"))]
        for name, make in runs:
            forward = name.startswith("forward")
            outputs = [("out", problem.forward.out), ("lse", problem.forward.lse_out)] if forward else \
                [(g, getattr(problem, g)) for g in GRADIENTS if getattr(problem, g) is not None]
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
                    print("FAILED", name, dtype, case, "not the same bits again")
                previous = got
            for (output, _), tensor in zip(outputs, previous):
                if tensor.numel() == 0:
                    continue
                largest = want[output].abs().max().clamp(min=1.0)   # one visible key: gradients of 0
                error = ((tensor.double() - want[output]).abs().max() / largest).item()
                if not torch.isfinite(tensor).all():
                    error = math.inf
                done += 1
                worst[name, dtype, output] = max(worst.get((name, dtype, output), 0.0), error)
                if not error <= LIMIT[dtype]:
                    failed += 1
                    print(f"FAILED {name} {dtype} {output} error {error:.3g} {case}", flush=True)
            if forward:
                problem.forward.out.copy_(kept[0])
                problem.forward.lse_out.copy_(kept[1])
    for k, value in worst.items():
        print(f"{k[0]:18} {k[1]:5} {k[2]:17} largest error {value:.3g}")
    print(f"{done} checks, {failed} failed")
    return failed


def time_all(args):
    bench = Bench(args.cache)
    torch = bench.torch
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for length in map(int, args.lengths.split(",")):
        case = dict(batch=max(1, args.tokens // length), heads=12, length=length, head_dim=args.head_dim)
        problem = Backward(case, args.dtype, 1)
        problem.forward.out.normal_()
        problem.forward.lse_out.fill_(30.0)
        for c in configs_of(args.head_dim):
            try:
                launches = bench.simt(problem, c)
            except RuntimeError as error:
                print(f"L {length} {c}: {error}")
                continue
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
            medians = [statistics.median(t[n] for t in times[1:]) for n in range(len(launches) + 1)]
            text = " ".join(f"{name} {t:.3f}" for (name, _), t in zip(launches, medians))
            print(f"L {length:5} {args.dtype} total {medians[-1]:.3f} ms  {text}  workspace {bench.memory.numel() * 4 >> 20} MiB  "
                  + " ".join(map(str, c.values())), flush=True)
    return 0


def time_reference(args):
    bench = Bench(args.cache)
    torch = bench.torch
    case = dict(batch=4, heads=8, length=8192, head_dim=args.head_dim)
    problem = Backward(case, args.dtype, 1)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
    for _, launch in bench.forward(problem, "simt"):
        launch()
    events[0].record()
    launches = bench.reference(problem)
    events[0].record()
    for n, (_, launch) in enumerate(launches):
        launch()
        events[n + 1].record()
    torch.cuda.synchronize()
    print("reference at length 8192, 32 heads: " + " ".join(
        f"{name} {a.elapsed_time(b):.1f} ms" for (name, _), a, b in zip(launches, events, events[1:])), flush=True)
    want = {g: getattr(problem, g).double() for g in GRADIENTS}
    for _, launch in bench.simt(problem, configs_of(args.head_dim)[0]):
        launch()
    torch.cuda.synchronize()
    for g in GRADIENTS:
        error = (getattr(problem, g).double() - want[g]).abs().max() / want[g].abs().max()
        print(f"simt against reference, {args.dtype} {g}: {error.item():.3g}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("compile", "prebuild", "check", "time", "reference"))
    parser.add_argument("--cache", default=os.path.join(da.ROOT, "..", "build", "da_cache"))
    parser.add_argument("--targets", default="sm_80,sm_90a,sm_100a,sm_120a")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="bf16", choices=tuple(da.DTYPES))
    parser.add_argument("--lengths", default="128,512,2048,8192")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if args.verb == "prebuild":
        args.targets = "sm_90a"
    verbs = {"compile": compile_all, "prebuild": compile_all, "check": check, "time": time_all, "reference": time_reference}
    return verbs[args.verb](args)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
