#!/usr/bin/env python3
"""Compiles variants of the sm_90 backward kernels of disentangled attention, checks them against float64 and times them.

    sm90_backward.py compile DIR [name:field=value,...] ...   needs NVRTC (libnvrtc.so.13), no GPU
    sm90_backward.py run DIR [--no-check] [--no-time] [--small]   needs PyTorch and a GPU of compute capability 9.0

Times are of each kernel alone and of all together. Each variant runs in a process of its own that is
killed when it hangs. A name with "notime" is only checked, one with "nocheck" only timed. ONLY=NAME picks one variant,
ONE_LENGTH=N times that length alone; --small takes the short cases alone, for compute-sanitizer.
"""
import ctypes
import json
import math
import os
import re
import sys

import dropout_mask
import sm90_forward
from sm90_forward import LaunchConfig, Attribute, masks, render, slot_table

DIRECTORY = "disentangled_attention/"
KERNELS = {"prepare": "backward_sm90_prepare", "kv": "backward_sm90_kv", "q": "backward_sm90_q",
           "position": "backward_sm90_position", "finish": "backward_finish"}
POSITION = dict(tiles=1, stages=3, position_blocks=264)
DEFAULTS = dict(head_dim=64, dtype=2, c2p=True, p2c=True, mask=False, packed=False, lse=True, dropout=False, aligned=True, tiled=False, tiled_keys=False)
LENGTHS = (128, 512, 1024, 2048, 4096, 8192)
ONE_LENGTH = int(os.environ.get("ONE_LENGTH", "0"))
SECONDS_PER_VARIANT = int(os.environ.get("SECONDS_PER_VARIANT", "25"))
THREADS = 128


def shared_bytes(c, kernel):
    """The sums of sm90_key_tiles.cuh, sm90_query_tiles.cuh and backward_sm90_position.cu."""
    operand, score, shear = 128 * c["head_dim"], 32 + 64 * 176, 4 * 16 * 180
    if kernel in ("prepare", "finish"):
        return 0
    if kernel == "position":
        stage = 2 * 128 * min(64, c["head_dim"]) + 8 * 1040 + 2 * 8 + 4
        return (c["c2p"] + c["p2c"]) * 16384 + POSITION["stages"] * stage
    if kernel == "kv":
        statistics = 8 * 80
        scores = score + 128 + 2 * shear if c["head_dim"] == 128 else max(score + 128, shear)
        total = operand * (8 + 3 * c["p2c"]) + (score + 128) * c["c2p"] + scores * c["p2c"] + 2 * (statistics + 16)
        return total + 1024 * c["dropout"] + 64 + 32
    bias = c["c2p"] or c["p2c"]
    second = max((1 if c["head_dim"] == 128 else 2) * operand, 2 * 8 * 1040 * bias)
    total = 2 * operand + (second + 1023) // 1024 * 1024 + 3 * operand
    return total + (shear if c["c2p"] else 32 * c["head_dim"] if bias else 0) + 32 + 80 + 32


def compile_variants(directory, texts):
    os.makedirs(directory, exist_ok=True)
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    variants = []
    for text in texts:
        name, _, fields = text.partition(":")
        config = dict(DEFAULTS)
        for field in filter(None, fields.split(",")):
            key, value = field.split("=")
            config[key] = value == "true" if value in ("true", "false") else int(value)
        for kernel, template in KERNELS.items():
            if os.environ.get("KERNEL", kernel) != kernel:
                continue
            if kernel in ("position", "finish") and not (config["c2p"] or config["p2c"]):
                continue
            more = POSITION if kernel in ("position", "finish") else {}
            if kernel == "position":
                more = dict(more, dim_part=min(64, config["head_dim"]))
            source = render(DIRECTORY + template + ".cu", dict(config, shared_bytes=shared_bytes(config, kernel), **more))
            image, log = sm90_forward.compile_source(nvrtc, source)
            registers = re.search(r"Used (\d+) registers", log)
            spills = re.search(r"(\d+) bytes spill stores", log)
            loud = re.findall(r".*C75\d\d.*", log)
            print(f"{name} {kernel}: {registers and registers[1]} registers, {spills and spills[1]} spilled, "
                  f"{shared_bytes(config, kernel)} shared {' '.join(loud)}", flush=True)
            open(os.path.join(directory, f"{name}.{kernel}.cubin"), "wb").write(image)
        variants.append(dict(name=name, config=config))
    path = os.path.join(directory, "variants.json")
    kept = [v for v in (json.load(open(path)) if os.path.exists(path) else []) if v["name"] not in {w["name"] for w in variants}]
    json.dump(kept + variants, open(path, "w"))


POINTERS = ("q", "k", "v", "position_key", "position_query", "mask", "cu_seqlens", "slots", "out", "dout", "lse", "dq", "dk",
            "dv", "d_position_key", "d_position_query", "workspace")
ROWS = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
TABLES = ("position_key", "position_query", "d_position_key", "d_position_query")


class Params(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in POINTERS] +
                [(f"{n}_{s}", ctypes.c_longlong) for n in ROWS for s in ("batch", "row", "head")] +
                [(f"{n}_{s}", ctypes.c_longlong) for n in TABLES for s in ("row", "head")] +
                [("mask_batch", ctypes.c_longlong), ("tokens", ctypes.c_longlong), ("regions", ctypes.c_longlong * 8)] +
                [(n, ctypes.c_int) for n in ("batch", "heads", "length", "band", "span")] +
                [("scale", ctypes.c_float), ("scale_log2", ctypes.c_float)] +
                [("keys", ctypes.c_uint * 28), ("threshold", ctypes.c_uint * 8), ("fraction", ctypes.c_uint), ("offset", ctypes.c_uint),
                 ("dropout_scale", ctypes.c_float)])


class Driver:
    def __init__(self, torch, prefix, config):
        self.torch, self.config = torch, config
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.functions = {k: self.load(f"{prefix}.{k}.cubin", k) for k in KERNELS if os.path.exists(f"{prefix}.{k}.cubin")}

    def load(self, path, kernel):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), open(path, "rb").read()))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module,
                                                 ("disentangled_attention_" + KERNELS[kernel]).encode()))
        self.check(self.cuda.cuFuncSetAttribute(function, 8, shared_bytes(self.config, kernel)))
        return function

    def check(self, status):
        if status:
            raise RuntimeError(f"driver error {status}")

    def launch(self, problem, kernels=tuple(KERNELS)):
        p = problem.p
        for kernel in kernels:
            blocks, block = (p.length + 63) // 64 * p.batch * p.heads, THREADS
            if kernel == "kv" and problem.dim == 128:
                block = 2 * THREADS
            if kernel == "prepare":
                blocks += p.heads * problem.chunks if problem.bias else 0
            elif kernel == "position":
                blocks = problem.parts * p.heads * max(1, problem.dim // 64) if problem.bias else 0
                block = 128 * (self.config["c2p"] + self.config["p2c"] + 1)
            elif kernel == "finish":
                blocks, block = (self.config["c2p"] + self.config["p2c"]) * p.heads * (2 + (2 * p.span + 7) // 8), 256
            if blocks == 0 or kernel not in self.functions:
                continue
            launch = LaunchConfig((blocks, 1, 1), (block, 1, 1), shared_bytes(self.config, kernel),
                                  self.torch.cuda.current_stream().cuda_stream, ctypes.pointer(Attribute(6, 0, 1)), 0)
            argument = (ctypes.c_void_p * 1)(ctypes.addressof(p))
            self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(launch), self.functions[kernel], argument, None))


class Problem:
    def __init__(self, torch, config, batch, heads, length, buckets=256, longest=512, fused=False, mask=None, lengths=None,
                 seed=0, reference=True):
        torch.manual_seed(seed)
        self.torch, self.config, self.mask, self.lengths = torch, config, mask, lengths
        dim, dtype = config["head_dim"], torch.float16 if config["dtype"] == 1 else torch.bfloat16
        self.batch, self.heads, self.length, self.dim, self.dtype = batch, heads, length, dim, dtype
        self.rows = sum(lengths) if lengths else batch * length
        self.bias = config["c2p"] or config["p2c"]
        width = heads * dim
        span, band, slots = slot_table(buckets, longest)
        new = lambda n: torch.randn(self.rows, n, device="cuda").to(dtype)
        if fused:
            all_three = new(3 * width)
            self.q, self.k, self.v = all_three[:, :width], all_three[:, width:2 * width], all_three[:, 2 * width:]
        else:
            self.q, self.k, self.v = (new(width) for _ in range(3))
        self.dout = new(width)
        self.pk, self.pq = (torch.randn(2 * span, width, device="cuda").to(dtype) for _ in range(2))
        self.dq, self.dk, self.dv = (torch.full((self.rows, width), math.nan, device="cuda", dtype=dtype) for _ in range(3))
        self.slots, self.band = torch.tensor(slots, dtype=torch.int32, device="cuda"), band
        self.scale = 1 / math.sqrt(dim * (1 + config["c2p"] + config["p2c"]))
        p = self.p = Params()
        self.out = torch.zeros(self.rows, width, device="cuda", dtype=dtype)
        self.lse = torch.full((heads * self.rows,), math.log2(length) + 1, device="cuda")
        self.dpk, self.dpq = (torch.full((2 * span, width), math.nan, device="cuda", dtype=dtype) for _ in range(2))
        tensors = dict(q=self.q, k=self.k, v=self.v, out=self.out, dout=self.dout, dq=self.dq, dk=self.dk, dv=self.dv)
        for n, t in tensors.items():
            setattr(p, n, t.data_ptr())
            setattr(p, n + "_row", t.stride(0))
            setattr(p, n + "_batch", t.stride(0) * length)
            setattr(p, n + "_head", dim)
        p.lse = self.lse.data_ptr()
        for n, t in (("position_key", self.pk), ("position_query", self.pq), ("d_position_key", self.dpk),
                     ("d_position_query", self.dpq)):
            setattr(p, n, t.data_ptr())
            setattr(p, n + "_row", t.stride(0))
            setattr(p, n + "_head", dim)
        p.slots = self.slots.data_ptr()
        if mask is not None:
            self.mask = mask.to(torch.uint8).cuda().contiguous()
            p.mask, p.mask_batch = self.mask.data_ptr(), length
        if lengths:
            starts = [0]
            for n in lengths:
                starts.append(starts[-1] + n)
            self.starts_list = starts
            self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")
            p.cu_seqlens, p.tokens = self.starts.data_ptr(), self.rows
        p.batch, p.heads, p.length, p.band, p.span = batch, heads, length, band, span
        p.scale, p.scale_log2 = self.scale, self.scale * math.log2(math.e)
        if config["dropout"]:
            p.keys[:], p.threshold[:], p.fraction, p.offset, p.dropout_scale = dropout_mask.arguments(0.1, 0x123456789abcdef, 7)
        # backward_layout.cuh, sm90_backward.cuh
        tiles = (length + 63) // 64
        self.near_width = min((band + 62) // 64, tiles - 1)
        self.near_slots = min(2 * self.near_width + 1, tiles)
        self.far = self.bias and self.near_width < tiles - 1
        # backward_distances.cuh
        divide = lambda a, b: (a + b - 1) // b
        squares = divide(tiles, POSITION["tiles"])
        width = min(divide(self.near_width, POSITION["tiles"]), squares - 1)
        diagonals = 2 * width + 1
        items = batch * (squares * diagonals - width * (width + 1))
        self.parts = divide(items, divide(items, divide(POSITION["position_blocks"], heads)))
        self.count = heads * (self.rows // 64 + batch) if lengths else batch * heads * tiles
        self.chunks = (band + 63) // 64 + (band + 126) // 64 + 1
        sizes = [3 * heads * self.rows * 8, self.count * self.near_slots * 8192 if self.bias else 0,
                 2 * self.count * 2 * dim * 4,
                 heads * (self.parts + diagonals - 1) * 2 * (2 * POSITION["tiles"] * 64) * dim * 4, heads * self.chunks * 2 * 128 * dim, 
                 self.count * ((5 + 2 * config["tiled_keys"]) * 128 * dim + 3072) if config["tiled"] else 2 * self.count * 128 * dim]
        offset = 0
        for i, size in enumerate(sizes):
            p.regions[i] = offset
            offset += (size + 1023) // 1024 * 1024
        self.workspace = torch.full((offset + 1024,), 255, dtype=torch.uint8, device="cuda")
        p.workspace = self.workspace.data_ptr()
        if reference:
            self.reference()

    def region(self, which, dtype, count=None):
        begin = self.p.regions[which]
        end = self.p.regions[which + 1] if which < 5 else self.workspace.numel() - 1024
        return self.workspace[begin:end].view(dtype)

    def sequences(self):
        first = 0
        for b, n in enumerate(self.lengths or [self.length] * self.batch):
            if n:
                yield b, first, n
            first += n

    def tile_base(self, b, h):
        if self.lengths:
            return h * (self.rows // 64 + self.batch) + self.starts_list[b] // 64 + b
        return (b * self.heads + h) * ((self.length + 63) // 64)

    def reference(self):
        torch, c = self.torch, self.config
        double = lambda: torch.zeros(self.rows, self.heads * self.dim, device="cuda", dtype=torch.float64)
        self.want = dict(dq=double(), dk=double(), dv=double())
        self.want_ds, self.want_ends = {}, {}
        grad = lambda: torch.zeros(2 * self.p.span, self.heads * self.dim, device="cuda", dtype=torch.float64)
        self.want.update(dpk=grad(), dpq=grad())
        for b, first, n in self.sequences():
            cut = lambda t: t[first:first + n].reshape(n, self.heads, self.dim).transpose(0, 1).double()
            table = lambda t: t.reshape(-1, self.heads, self.dim).transpose(0, 1).double()
            q, k, v, dout, pk, pq = cut(self.q), cut(self.k), cut(self.v), cut(self.dout), table(self.pk), table(self.pq)
            i = torch.arange(n, device="cuda")
            delta = i[:, None] - i[None, :]
            slot = self.slots.long()[delta.clamp(-self.band, self.band) + self.band]
            index = slot[None].expand(self.heads, -1, -1)
            s = q @ k.transpose(1, 2)
            if c["c2p"]:
                s += (q @ pk.transpose(1, 2)).gather(2, index)
            if c["p2c"]:
                s += (k @ pq.transpose(1, 2)).gather(2, index.transpose(1, 2)).transpose(1, 2)
            s *= self.scale
            keep = self.mask[b] if self.mask is not None else None
            if keep is not None:
                s = s.masked_fill((keep == 0)[None, None, :], -math.inf)
                s = torch.where((keep == 0)[None, :, None], torch.zeros_like(s), s)
            lse = torch.logsumexp(s, 2) * math.log2(math.e)
            prob = torch.softmax(s, 2)
            factor = torch.ones_like(prob)
            if c["dropout"]:
                for h in range(self.heads):
                    factor[h] = torch.from_numpy(dropout_mask.kept(self.p, b * self.heads + h, n)).cuda()
                factor *= self.p.dropout_scale
            out = (prob * factor) @ v
            self.out[first:first + n] = out.transpose(0, 1).reshape(n, -1).to(self.dtype)
            row_delta = (out * dout).sum(2)
            ds = prob * ((dout @ v.transpose(1, 2)) * factor - row_delta[:, :, None])
            if keep is not None:
                ds = torch.where((keep == 0)[None, :, None], torch.zeros_like(ds), ds)
            dq, dk, dv = ds @ k, ds.transpose(1, 2) @ q, (prob * factor).transpose(1, 2) @ dout
            by_slot = torch.zeros(self.heads, n, pk.shape[1], device="cuda", dtype=torch.float64)
            flat = lambda t: (t * self.scale).transpose(0, 1).reshape(pk.shape[1], -1)
            if c["c2p"]:
                rows_by_slot = by_slot.scatter_add(2, index, ds)
                dq += rows_by_slot @ pk
                self.want["dpk"] += flat(rows_by_slot.transpose(1, 2) @ q)
            if c["p2c"]:
                rows_by_slot = by_slot.scatter_add(2, index.transpose(1, 2), ds.transpose(1, 2))
                dk += rows_by_slot @ pq
                self.want["dpq"] += flat(rows_by_slot.transpose(1, 2) @ k)
            for name, value in (("dq", dq * self.scale), ("dk", dk * self.scale), ("dv", dv)):
                self.want[name][first:first + n] = value.transpose(0, 1).reshape(n, -1)
            # near dS as the kernels see it: with dropout gradients that cancel keep the rounding of `out`
            given = (self.out[first:first + n].reshape(n, self.heads, self.dim).transpose(0, 1).double() * dout).sum(2)
            kept = torch.ones(n, device="cuda") if keep is None else (keep != 0)
            self.want_ds[b] = ds + prob * (row_delta - given)[:, :, None] * kept[None, :, None]
            tile = i // 64
            diagonal = tile[:, None] - tile[None, :]
            for end, far in ((0, diagonal > self.near_width), (1, diagonal < -self.near_width)):
                part = ds * far
                self.want_ends[b, end] = (part.sum(2, keepdim=True) * q).sum(1), (part.sum(1)[:, :, None] * k).sum(1)
            if self.lengths:
                at = torch.arange(self.heads, device="cuda")[:, None] * self.rows + first + i[None, :]
            else:
                at = (b * self.heads + torch.arange(self.heads, device="cuda"))[:, None] * n + i[None, :]
            self.lse[at.reshape(-1)] = lse.float().reshape(-1)

    def errors(self):
        """Largest error over largest value of each result."""
        torch, c, result = self.torch, self.config, {}

        def error(got, want, floor=1e-3):
            if not bool(torch.isfinite(got).all()):
                return math.inf
            # with dropout gradients that cancel keep the rounding of `out`
            return ((got.double() - want).abs().max() / want.abs().max().clamp(min=max(floor, c["dropout"]))).item()

        if self.rows:
            for name in ("dq", "dk", "dv"):
                result[name] = error(getattr(self, name), self.want[name])
        if not self.bias:
            return result
        for name, on in (("dpk", "c2p"), ("dpq", "p2c")):
            if self.config[on]:
                result[name] = error(getattr(self, name), self.want[name])
        order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device="cuda")
        near = self.region(1, self.dtype)[:self.count * self.near_slots * 4096].view(-1, 8, 8, 8, 8)
        ends = self.region(2, torch.float32)[:4 * self.count * self.dim].view(2, self.count, 2, self.dim)
        for b, first, n in self.sequences():
            ds, tiles = self.want_ds[b], (n + 63) // 64
            padded = torch.zeros(self.heads, tiles * 64, tiles * 64, device="cuda", dtype=torch.float64)
            padded[:, :n, :n] = ds
            largest = ds.abs().max().clamp(min=max(1e-3, c["dropout"]))
            worst = 0.0
            for y in range(tiles):
                for x in range(max(0, y - self.near_width), min(tiles, y + self.near_width + 1)):
                    numbers = torch.tensor([(self.tile_base(b, h) + y) * self.near_slots + x % self.near_slots
                                            for h in range(self.heads)], device="cuda")
                    got = near[numbers].double()   # head, key / 8, query / 8, key % 8, position
                    natural = torch.empty_like(got)
                    natural[..., order] = got
                    natural = natural.permute(0, 2, 4, 1, 3).reshape(self.heads, 64, 64)
                    gap = (natural - padded[:, 64 * x:64 * x + 64, 64 * y:64 * y + 64]).abs().max()
                    worst = max(worst, (gap / largest).nan_to_num(nan=math.inf).item())
            result["ds"] = max(result.get("ds", 0.0), worst)
            if self.far:
                for end in range(2):
                    for t, name in ((0, "c2p"), (1, "p2c")):
                        if self.config[name]:
                            got = torch.stack([ends[t, self.tile_base(b, h):self.tile_base(b, h) + tiles, end].sum(0)
                                               for h in range(self.heads)])
                            key = "end_" + name
                            # sums of many small terms of either sign
                            result[key] = max(result.get(key, 0.0), error(got, self.want_ends[b, end][t], 0.5))
        return result


def check_cases(torch, c, small):
    tables = [(256, 512), (32, 64), (0, 40)]
    if c["packed"]:
        yield "packed mix", Problem(torch, c, 7, 3, 300, lengths=[20, 0, 60, 300, 1, 129, 128])
        yield "packed narrow", Problem(torch, c, 4, 2, 700, 32, 64, lengths=[200, 0, 313, 64])
        if not small:
            yield "packed long", Problem(torch, c, 3, 2, 1500, lengths=[1500, 700, 1337], fused=True)
        return
    if c["mask"]:
        for length in (33, 200) if small else (1, 33, 128, 200, 700):
            for name, mask in masks(torch, 3, length).items():
                yield f"{name} {length}", Problem(torch, c, 3, 2, length, *tables[length % 3], mask=mask)
        return
    for length in (65, 200) if small else (1, 7, 63, 64, 65, 127, 128, 129, 200, 256, 300, 513, 640, 1000):
        yield f"{length}", Problem(torch, c, 2, 3, length, fused=length % 2 == 1, seed=length)
        yield f"{length} narrow", Problem(torch, c, 3, 2, length, *tables[1 + length % 2], seed=length)
    if not small:
        yield "1500", Problem(torch, c, 1, 2, 1500)
        yield "many", Problem(torch, c, 40, 12, 200)


def check(torch, driver, config, small, tolerance=2e-2):
    worst, failures, cases = {}, 0, 0
    for name, problem in check_cases(torch, config, small):
        driver.launch(problem)
        torch.cuda.synchronize()
        errors = problem.errors()
        same = True
        if not small:
            results = problem.dq, problem.dk, problem.dv, problem.dpk, problem.dpq, problem.region(1, torch.uint8)
            first = [t.clone() for t in results]
            driver.launch(problem)
            torch.cuda.synchronize()
            same = all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in
                       zip(first, results))
        cases += 1
        if not all(e <= tolerance for e in errors.values()) or not same:
            failures += 1
            if failures <= 6:
                print(f"  WRONG {name}: {' '.join(f'{k} {e:.2e}' for k, e in errors.items())} repeatable {same}", flush=True)
        for key, e in errors.items():
            worst[key] = max(worst.get(key, 0.0), e)
    print(f"  checked {cases}: {failures} failures; worst {' '.join(f'{k} {e:.1e}' for k, e in worst.items())}", flush=True)


def time_lengths(torch, driver, config):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for length in [ONE_LENGTH] if ONE_LENGTH else LENGTHS:
        batch = 16384 // length
        mask = torch.ones(batch, length) if config["mask"] else None
        problem = Problem(torch, config, batch, 12, length, mask=mask, lengths=[length] * batch if config["packed"] else None,
                          reference=False)
        text = []
        driver.launch(problem)
        for kernel in list(KERNELS) + ["all"]:
            chosen = (kernel,) if kernel != "all" else tuple(KERNELS)
            if kernel != "all" and kernel not in driver.functions:
                continue
            times = []
            for _ in range(2):
                driver.launch(problem, chosen)
            for _ in range(11):
                flush.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                driver.launch(problem, chosen)
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            times.sort()
            text.append(f"{kernel} {times[5]:.4f} ({times[0]:.4f} {times[9]:.4f})")
        print(f"  {length}: {'  '.join(text)}", flush=True)


def run(directory, options):
    def measure(torch, variant):
        driver = Driver(torch, os.path.join(directory, variant["name"]), variant["config"])
        timed = "--no-time" not in options and "notime" not in variant["name"]
        checked = "--no-check" not in options and "nocheck" not in variant["name"]
        if checked:
            check(torch, driver, variant["config"], "--small" in options)
        if timed:
            time_lengths(torch, driver, variant["config"])

    sm90_forward.run_variants(directory, SECONDS_PER_VARIANT, measure)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("compile", "run"):
        sys.exit(__doc__)
    if sys.argv[1] == "compile":
        compile_variants(sys.argv[2], sys.argv[3:])
    else:
        run(sys.argv[2], sys.argv[3:])
