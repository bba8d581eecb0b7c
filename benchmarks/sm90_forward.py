#!/usr/bin/env python3
"""Compiles variants of the sm_90 forward kernel of disentangled attention, checks them against float64 and times them.

    sm90_forward.py compile DIR [name:field=value,...] ...   needs NVRTC (libnvrtc.so.13), no GPU
    sm90_forward.py run DIR [--no-check] [--no-time]         needs PyTorch and a GPU of compute capability 9.0
    sm90_forward.py compare DIR/NAME DIR/NAME ...            the same; times variants in turn, execution by execution

Times of `run` differ by up to 7 % from one minute to the next, as clocks do; ratios of `compare` by less than 1 %. In `run`
each variant runs in a process of its own that is killed when it hangs. A name with "notime" is only checked, one with
"nocheck" only timed. LENGTHS=N,N,... and BATCH=N choose what is timed; ONLY=NAME picks one variant and ONE_LENGTH=N times
that length alone, for a profiler:
    ONLY=both ONE_LENGTH=512 ncu --target-processes all -k regex:forward_sm90 -s 2 -c 1 ... sm90_forward.py run DIR --no-check
"""
import ctypes
import json
import math
import os
import re
import signal
import statistics
import sys
import time

import dropout_mask

ROOT = os.environ.get("TURBOTUNE_TEMPLATE_DIR") or \
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kernel_templates")
KERNEL, EXPAND = "disentangled_attention_forward_sm90", "disentangled_attention_expand_positions"
DEFAULTS = dict(head_dim=64, dtype=2, c2p=True, p2c=True, mask=False, packed=False, lse=True, warpgroups=2, block_n=128,
                stages=2, aligned=True, boxes=True, contiguous=False,
                spare_chunks=0, resident=False, prefetch=False, dropout=False, paired=False, far=True)
LENGTHS = tuple(map(int, os.environ.get("LENGTHS", "128,512,1024,2048,4096,8192").split(",")))
BATCH = int(os.environ.get("BATCH", "0"))   # 0: 16384 / length
PADDING = os.environ.get("MASK", "")        # of masked variants: none, "ragged" (0 to 63 keys at the right), "left" (64 to 127)
ONE_LENGTH = int(os.environ.get("ONE_LENGTH", "0"))
SECONDS_PER_VARIANT = 15


def render(path, config):
    seen, out = set(), []

    def constant(name, value):
        kind = "bool" if isinstance(value, bool) else "int"
        return f"constexpr {kind} {name} = {str(value).lower()};\n"

    def add(name):
        for line in open(os.path.join(ROOT, name)):
            include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not include:
                if "#pragma once" not in line:
                    out.append(line)
                continue
            if include[1] in seen:
                continue
            seen.add(include[1])
            if include[1] == "config":
                out.append("namespace config {\n" + "".join(constant(*field) for field in config.items()) + "}\n")
            else:
                add(include[1])

    add(path)
    return "".join(out)


def shared_bytes(c):
    """The sum of sm90_layout.cuh."""
    bias, units, groups = c["c2p"] or c["p2c"], c["block_n"] // 64, c["warpgroups"]
    ring = groups + units + c["spare_chunks"]
    width = 2 * c["head_dim"]
    shared_t = c["p2c"] and groups == 2 and units == 2
    pitch = max(2 * (c["block_n"] + 24) * c["c2p"], width + 16)
    scratch = 32 + 4 * groups * (16 * pitch + 16)
    if c["p2c"]:
        scratch += 32 + 4 * units * (1 if shared_t else groups) * (32 * ((128 if shared_t else 64) + 24) + 16)
    total = 2 * c["stages"] * c["block_n"] * width + (c["c2p"] + c["p2c"]) * ring * 64 * width + 64 * groups * width
    total += scratch + 4 * width * bias + (16 * c["stages"] + 16 + 64 + 32) * c["mask"]
    total += c["stages"] * (units * 512 * groups + 16) * c["dropout"]
    total += 32 * c["head_dim"] * (not c["lse"] and not c["dropout"] and c["dtype"] == 2 and c["head_dim"] < 128)
    return total + 8 * (4 * c["stages"] + ring * bias + 3 + 2 * groups * c["p2c"])


def compile_source(nvrtc, source):
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"forward_sm90.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_90a", b"-std=c++20", b"--ptxas-options=-v", b"--no-cache"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status:
        raise SystemExit(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image.raw, log.value.decode()


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
        image, log = compile_source(nvrtc, render("disentangled_attention/forward_sm90.cu",
                                                   dict(config, shared_bytes=shared_bytes(config))))
        registers = re.search(r"Used (\d+) registers", log)
        spills = re.search(r"(\d+) bytes spill stores", log)
        loud = re.findall(r".*C75\d\d.*", log)
        print(f"{name}: {registers and registers[1]} registers, {spills and spills[1]} spilled, "
              f"{shared_bytes(config)} shared {' '.join(loud)}", flush=True)
        open(os.path.join(directory, name + ".cubin"), "wb").write(image)
        if config["c2p"] or config["p2c"]:
            image, _ = compile_source(nvrtc, render("disentangled_attention/expand_positions.cu", config))
            open(os.path.join(directory, name + ".expand.cubin"), "wb").write(image)
        variants.append(dict(name=name, config=config))
    path = os.path.join(directory, "variants.json")
    kept = [v for v in (json.load(open(path)) if os.path.exists(path) else []) if v["name"] not in {w["name"] for w in variants}]
    json.dump(kept + variants, open(path, "w"))


class Params(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in ("q", "k", "v", "position_key", "position_query", "mask", "cu_seqlens",
                                                "slots", "out", "lse", "workspace")] +
                [(n, ctypes.c_longlong) for n in (
                    "q_batch", "q_row", "q_head", "k_batch", "k_row", "k_head", "v_batch", "v_row", "v_head", "out_batch",
                    "out_row", "out_head", "position_key_row", "position_key_head", "position_query_row",
                    "position_query_head", "mask_batch", "tokens")] +
                [(n, ctypes.c_int) for n in ("batch", "heads", "length", "band", "span")] + [("scale_log2", ctypes.c_float)] +
                [("keys", ctypes.c_uint * 28), ("threshold", ctypes.c_uint * 8), ("fraction", ctypes.c_uint), ("offset", ctypes.c_uint),
                 ("kept_scale", ctypes.c_float)])


def slot_table(buckets, longest):
    span = buckets if buckets > 0 else longest

    def bucket(d):
        middle = buckets // 2
        if buckets <= 0 or abs(d) <= middle:
            return d
        steps = math.ceil(math.log(abs(d) / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
        return steps if d > 0 else -steps

    def slot(d):
        return min(max(bucket(d) + span, 0), 2 * span - 1)

    band = 1
    reach = 4 * max(longest, span)
    while any(slot(s * d) != slot(s * reach) for s in (1, -1) for d in (band, band + 1, band + 2)):
        band += 1
    return span, band, [slot(d) for d in range(-band, band + 1)]


class TensorMaps:
    """ForwardMaps of params.h: q, k and v as tensor maps, one after the other."""

    def __init__(self, cuda, config, p, rows):
        self.memory = ctypes.create_string_buffer(3 * 128 + 64)
        self.address = -(-ctypes.addressof(self.memory) // 64) * 64
        dim, kind = config["head_dim"], 6 if config["dtype"] == 1 else 9   # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16
        batch, length = (1, rows) if config["packed"] else (p.batch, p.length)
        for i, n in enumerate("qkv"):
            strides = [2 * getattr(p, n + "_" + step) for step in ("row", "head", "batch")]
            status = cuda.cuTensorMapEncodeTiled(
                ctypes.c_void_p(self.address + 128 * i), kind, 4, ctypes.c_void_p(getattr(p, n)),
                (ctypes.c_uint64 * 4)(dim, length, p.heads, batch), (ctypes.c_uint64 * 3)(*strides),
                (ctypes.c_uint32 * 4)(min(dim, 64), 64, 1, 1), (ctypes.c_uint32 * 4)(1, 1, 1, 1), 0,
                3 if dim >= 64 else 2, 2, 0)   # swizzle of 128 or 64 bytes, promotion to 128 bytes in L2, zeros beyond
            if status:
                raise RuntimeError(f"tensor map of {n}: driver error {status}")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


class Driver:
    def __init__(self, torch, path, config):
        self.torch, self.config = torch, config
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.function, self.shared = self.load(path, KERNEL), shared_bytes(config)
        self.check(self.cuda.cuFuncSetAttribute(self.function, 8, self.shared))
        self.expand = self.load(path.replace(".cubin", ".expand.cubin"), EXPAND) if config["c2p"] or config["p2c"] else None
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count

    def load(self, path, name):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), open(path, "rb").read()))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        return function

    def check(self, status):
        if status:
            raise RuntimeError(f"driver error {status}")

    def enqueue(self, function, grid, block, shared, p, programmatic, maps=None):
        attribute = Attribute(6, 0, 1)   # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        launch = LaunchConfig((grid, 1, 1), (block, 1, 1), shared, self.torch.cuda.current_stream().cuda_stream,
                              ctypes.pointer(attribute), int(programmatic))
        argument = (ctypes.c_void_p * 2)(ctypes.addressof(p), maps.address if maps else None)
        self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(launch), function, argument, None))

    def launch(self, problem):
        p, rows = problem.p, 64 * self.config["warpgroups"]
        if self.expand:
            chunks = (p.band + 63) // 64 + (p.band + 126) // 64 + 1
            self.enqueue(self.expand, p.heads * chunks, 256, 0, p, False)
        blocks = min(self.sms * (1 + self.config["paired"]), (p.length + rows - 1) // rows * p.batch * p.heads)
        if not problem.maps:
            problem.maps = TensorMaps(self.cuda, self.config, p, problem.rows)
        self.enqueue(self.function, blocks, 2 * rows + 128, self.shared, p, self.expand is not None, problem.maps)


class Problem:
    def __init__(self, torch, config, batch, heads, length, buckets=256, longest=512, fused=False, mask=None, lengths=None,
                 seed=0, scale=1.0, growing=False):
        torch.manual_seed(seed)
        self.torch, self.config, self.mask, self.lengths, self.maps = torch, config, mask, lengths, None
        dim, dtype = config["head_dim"], torch.float16 if config["dtype"] == 1 else torch.bfloat16
        self.batch, self.heads, self.length, self.dim = batch, heads, length, dim
        self.rows = sum(lengths) if lengths else batch * length
        width = heads * dim
        span, band, slots = slot_table(buckets, longest)
        if fused:
            all_three = torch.randn(self.rows, 3 * width, device="cuda") * scale
            all_three = all_three.to(dtype)
            self.q, self.k, self.v = all_three[:, :width], all_three[:, width:2 * width], all_three[:, 2 * width:]
        else:
            self.q, self.k, self.v = ((torch.randn(self.rows, width, device="cuda") * scale).to(dtype) for _ in range(3))
        if growing:   # the largest score of a row moves on, key after key
            self.k = (self.k.float() * torch.linspace(0.1, 12, self.rows, device="cuda")[:, None]).to(dtype)
        self.pk, self.pq = ((torch.randn(2 * span, width, device="cuda") * scale).to(dtype) for _ in range(2))
        self.out = torch.full((self.rows, width), float("nan"), device="cuda", dtype=dtype)
        self.lse = torch.full((heads * self.rows,), float("nan"), device="cuda")
        self.slots, self.band = torch.tensor(slots, dtype=torch.int32, device="cuda"), band
        self.scale = 1 / math.sqrt(dim * (1 + config["c2p"] + config["p2c"]))
        p = self.p = Params()
        for n, t in (("q", self.q), ("k", self.k), ("v", self.v), ("out", self.out)):
            setattr(p, n, t.data_ptr())
            setattr(p, n + "_row", t.stride(0))
            setattr(p, n + "_batch", t.stride(0) * length)
            setattr(p, n + "_head", dim)
        for n, t in (("position_key", self.pk), ("position_query", self.pq)):
            setattr(p, n, t.data_ptr())
            setattr(p, n + "_row", t.stride(0))
            setattr(p, n + "_head", dim)
        tables = config["c2p"] + config["p2c"]
        chunks = (band + 63) // 64 + (band + 126) // 64 + 1
        self.workspace = torch.full((max(1, heads * chunks * tables * 64 * dim),), float("nan"), device="cuda", dtype=dtype)
        p.workspace = self.workspace.data_ptr()
        p.slots, p.lse = self.slots.data_ptr(), self.lse.data_ptr()
        if mask is not None:
            self.mask = mask.to(torch.uint8).cuda().contiguous()
            p.mask, p.mask_batch = self.mask.data_ptr(), length
        if lengths:
            starts = [0]
            for n in lengths:
                starts.append(starts[-1] + n)
            self.starts = torch.tensor(starts, dtype=torch.int32, device="cuda")
            p.cu_seqlens, p.tokens = self.starts.data_ptr(), self.rows
        p.batch, p.heads, p.length, p.band, p.span = batch, heads, length, band, span
        p.scale_log2 = self.scale * math.log2(math.e)
        if config["dropout"]:
            p.keys[:], p.threshold[:], p.fraction, p.offset, p.kept_scale = dropout_mask.arguments(0.1, 0x123456789abcdef, 7)

    def sequence(self, number, first, length, keep):
        torch = self.torch
        cut = lambda t: t[first:first + length].reshape(length, self.heads, self.dim).transpose(0, 1).double()
        q, k, v = cut(self.q), cut(self.k), cut(self.v)
        i = torch.arange(length, device="cuda")
        slot = self.slots.long()[(i[:, None] - i[None, :]).clamp(-self.band, self.band) + self.band]
        s = q @ k.transpose(1, 2)
        table = lambda t: t.reshape(-1, self.heads, self.dim).transpose(0, 1).double()
        if self.config["c2p"]:
            s += (q @ table(self.pk).transpose(1, 2)).gather(2, slot[None].expand(self.heads, -1, -1))
        if self.config["p2c"]:
            s += (k @ table(self.pq).transpose(1, 2)).gather(2, slot.t()[None].expand(self.heads, -1, -1)).transpose(1, 2)
        s *= self.scale
        if keep is not None:
            s = s.masked_fill((keep == 0)[None, None, :], -math.inf)
            s = torch.where((keep == 0)[None, :, None], torch.zeros_like(s), s)
        weights = torch.softmax(s, 2)
        if self.config["dropout"]:
            kept = torch.stack([torch.from_numpy(dropout_mask.kept(self.p, number * self.heads + h, length))
                                for h in range(self.heads)]).cuda()
            weights = weights * kept * self.p.kept_scale
        return (weights @ v).transpose(0, 1).reshape(length, -1), torch.logsumexp(s, 2) * math.log2(math.e)

    def errors(self):
        """Largest error over largest value, relative RMS error, largest lse error."""
        torch = self.torch
        first, worst, square, total, largest, worst_lse = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        for b, n in enumerate(self.lengths or [self.length] * self.batch):
            if n:
                want, lse = self.sequence(b, first, n, self.mask[b] if self.mask is not None else None)
                got = self.out[first:first + n].double()
                if not bool(torch.isfinite(got).all()):
                    return math.inf, math.inf, math.inf
                worst = max(worst, (got - want).abs().max().item())
                square += (got - want).square().sum().item()
                total += want.square().sum().item()
                largest = max(largest, want.abs().max().item())
                if self.config["lse"]:
                    rows = self.lse.reshape(self.heads, -1)[:, first:first + n] if self.lengths else \
                        self.lse.reshape(self.batch, self.heads, -1)[b]
                    worst_lse = max(worst_lse, (rows.double() - lse).abs().nan_to_num(nan=math.inf).max().item())
            first += n
        return worst / largest, math.sqrt(square / max(total, 1e-30)), worst_lse


def masks(torch, batch, length):
    j = torch.arange(length)
    torch.manual_seed(length)
    rows = {"right": [j < max(1, length - 1 - (b * length) // (batch + 1)) for b in range(batch)],
            "left": [j >= (b * length) // (batch + 1) for b in range(batch)],
            "holes": [torch.rand(length) < 0.7 for b in range(batch)],
            "last": [j == length - 1 for b in range(batch)],
            "hidden": [j < 0 if b == 0 else j >= 0 for b in range(batch)],
            "full": [j >= 0 for b in range(batch)]}
    return {name: torch.stack(value) for name, value in rows.items()}


def check_cases(torch, c):
    tables = [(256, 512), (32, 64), (0, 40)]
    if c["packed"]:
        yield "packed mix", Problem(torch, c, 7, 3, 300, lengths=[20, 0, 60, 300, 1, 129, 128])
        yield "packed long", Problem(torch, c, 3, 2, 1500, lengths=[1500, 700, 1337], fused=True)
        yield "packed narrow", Problem(torch, c, 4, 2, 700, 32, 64, lengths=[700, 0, 513, 64])
        yield "growing packed", Problem(torch, c, 3, 2, 1700, 32, 64, lengths=[1700, 70, 900], growing=True)
        return
    if c["mask"]:
        for length in (1, 33, 128, 200, 700):
            for name, mask in masks(torch, 3, length).items():
                yield f"{name} {length}", Problem(torch, c, 3, 2, length, *tables[length % 3], mask=mask)
        for length in (300, 900, 1700):
            for name in ("right", "left", "holes"):
                yield f"growing {name} {length}", Problem(torch, c, 3, 2, length, 32, 64, growing=True,
                                                          mask=masks(torch, 3, length)[name])
        return
    if c["resident"]:
        for length in (1, 63, 64, 65, 127, 128):   # 31 sequences: blocks of the grid meet two heads
            yield f"{length}", Problem(torch, c, 31, 12, length, seed=length)
            yield f"{length} narrow", Problem(torch, c, 30, 5, length, *tables[1 + length % 2], seed=length)
        return
    for length in (1, 7, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 300, 384, 512, 513, 640, 1000, 1500, 2100):
        yield f"{length}", Problem(torch, c, 2, 3, length, fused=length % 2 == 1, seed=length)
        if length < 1100:
            yield f"{length} narrow", Problem(torch, c, 3, 2, length, *tables[1 + length % 2], seed=length)
    yield "many", Problem(torch, c, 40, 12, 200)
    yield "growing", Problem(torch, c, 1, 3, 1700, growing=True)
    yield "growing narrow", Problem(torch, c, 1, 3, 900, 32, 64, growing=True)


def has_far_tiles(config, length, band):
    """Whether all distances of some tile lie beyond the band (key_tiles of sequence.cuh)."""
    rows, keys, last = 64 * config["warpgroups"], config["block_n"], max(0, length - 1)
    return max(last // rows * rows - (keys - 1), last // keys * keys - (rows - 1)) >= band


def check(torch, driver, config, tolerance=2e-2):
    worst = [("", 0, 0, 0)] * 2
    failures = 0
    for name, problem in check_cases(torch, config):
        if not config["far"] and has_far_tiles(config, problem.length, problem.p.band):
            continue
        driver.launch(problem)
        torch.cuda.synchronize()
        first = problem.out.clone()
        errors = problem.errors()
        driver.launch(problem)
        torch.cuda.synchronize()
        same = torch.equal(first, problem.out)
        # Scores of hundreds, made from rounded operands, are exact to a tenth.
        lse_tolerance = 2e-1 if "growing" in name else 2e-2
        bad = not errors[0] <= tolerance or (config["lse"] and not errors[2] <= lse_tolerance) or not same
        if bad:
            failures += 1
            if failures <= 6:
                print(f"  WRONG {name}: max {errors[0]:.2e} rms {errors[1]:.2e} lse {errors[2]:.2e} repeatable {same}", flush=True)
        worst[0] = max(worst[0], (name, *errors), key=lambda x: x[1])
    length = 128 if config["resident"] else 300
    big = Problem(torch, config, 2, 2, length, *((32, 64) if config["far"] else (256, 512)), mask=torch.ones(2, length) if config["mask"] else None,
                  lengths=[length, 100] if config["packed"] else None, scale=3e3 if config["dtype"] == 1 else 1e4)
    driver.launch(big)
    torch.cuda.synchronize()
    finite = bool(torch.isfinite(big.out).all())
    print(f"  checked: {failures} failures; worst {worst[0][0]}: max {worst[0][1]:.2e} rms {worst[0][2]:.2e} "
          f"lse {worst[0][3]:.2e}; large finite {finite}", flush=True)


def timing_problem(torch, config, length):
    batch = BATCH or 16384 // length
    mask = None
    if config["mask"]:
        torch.manual_seed(length)
        keys = torch.arange(length)[None, :]
        if PADDING == "ragged":
            mask = keys < torch.randint(max(1, length - 63), length + 1, (batch, 1))
        elif PADDING == "left":
            mask = keys >= torch.randint(min(64, length // 2), min(length, 128), (batch, 1))
        else:
            mask = (keys >= 0).expand(batch, length)
    return Problem(torch, config, batch, 12, length, mask=mask, lengths=[length] * batch if config["packed"] else None)


def timed_launch(torch, flush, driver, problem):
    flush.zero_()
    torch.cuda._sleep(300_000)   # longer than the host needs to enqueue what follows
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    driver.launch(problem)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def time_lengths(torch, driver, config):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    row = []
    for length in [ONE_LENGTH] if ONE_LENGTH else LENGTHS:
        if config["resident"] and length > 128:
            continue
        problem = timing_problem(torch, config, length)
        for _ in range(2):
            driver.launch(problem)
        row.append(statistics.median(timed_launch(torch, flush, driver, problem) for _ in range(25)))
    print("  ms " + " ".join(f"{t:.4f}" for t in row), flush=True)


def compare(paths):
    import torch
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    variants = []
    for path in paths:
        directory, name = os.path.split(path)
        config = next(v for v in json.load(open(os.path.join(directory, "variants.json"))) if v["name"] == name)["config"]
        variants.append((path, config, Driver(torch, path + ".cubin", config)))
    for length in [ONE_LENGTH] if ONE_LENGTH else LENGTHS:
        if length > 128 and any(config["resident"] for _, config, _ in variants):
            continue
        problems = [timing_problem(torch, config, length) for _, config, _ in variants]
        times = [[] for _ in variants]
        for turn in range(34):
            for i in range(len(variants)):
                i = (i + turn) % len(variants)
                driver = variants[i][2]
                driver.launch(problems[i])   # brings its code
                time_ms = timed_launch(torch, flush, driver, problems[i])
                if turn > 2:
                    times[i].append(time_ms)
        medians = [statistics.median(row) for row in times]
        print(f"L {length:5} " + "  ".join(f"{path} {median:.4f} x {median / medians[0]:.3f}"
                                           for (path, _, _), median in zip(variants, medians)), flush=True)


def run_variants(directory, seconds, measure):
    """measure(torch, variant) for every variant of the folder, each in a process of its own, killed after `seconds`."""
    import torch
    for variant in json.load(open(os.path.join(directory, "variants.json"))):
        if os.environ.get("ONLY", variant["name"]) != variant["name"]:
            continue
        print(variant["name"], flush=True)
        child = os.fork()
        if child == 0:
            try:
                torch.backends.cuda.matmul.allow_tf32 = False
                torch.cuda.init()
                torch.empty(1, device="cuda")
                measure(torch, variant)
            except Exception as error:
                print("  FAILED", repr(error)[:600], flush=True)
                os._exit(1)
            os._exit(0)
        deadline = time.time() + seconds
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.time() > deadline:
                print("  HUNG or too slow", flush=True)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.02)


def wanted(variant, options):
    """Whether the variant is to be timed, and to be checked."""
    name = variant["name"]
    return ("--no-time" not in options and variant["config"]["head_dim"] == 64 and "notime" not in name,
            "--no-check" not in options and "nocheck" not in name)


def run(directory, options):
    def measure(torch, variant):
        driver = Driver(torch, os.path.join(directory, variant["name"] + ".cubin"), variant["config"])
        timed, checked = wanted(variant, options)
        if timed:
            time_lengths(torch, driver, variant["config"])
        if checked:
            check(torch, driver, variant["config"])

    print("lengths " + " ".join(map(str, LENGTHS)), flush=True)
    run_variants(directory, SECONDS_PER_VARIANT, measure)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("compile", "run", "compare"):
        sys.exit(__doc__)
    if sys.argv[1] == "compile":
        compile_variants(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "compare":
        compare(sys.argv[2:])
    else:
        run(sys.argv[2], sys.argv[3:])
