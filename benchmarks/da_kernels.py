#!/usr/bin/env python3
"""Compiles, checks and times the CUDA templates of disentangled attention without the runtime.

  da_kernels.py compile [--targets sm_80,sm_90a,sm_100a,sm_120a]   registers and spills of every config (no GPU needed)
  da_kernels.py prebuild                                            compiles what check and time need (no GPU needed)
  da_kernels.py check                                               random problems against a float64 reference
  da_kernels.py time [--lengths 128,512]                            median times of the configs

check and time need PyTorch with a CUDA device. NVRTC is found through TURBOTUNE_NVRTC, the loader, or /usr/local/cuda.
Cubins are kept in --cache DIR, by a digest of source and target.
"""
import argparse
import ctypes
import glob
import hashlib
import itertools
import math
import os
import re
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kernel_templates")
DTYPES = {"f32": 0, "f16": 1, "bf16": 2}


# --- rendering and compiling -----------------------------------------------------------------------------------------

def render(path, parameters):
    """The same text as runtime/kernel/render.cpp makes: parameters as constants, snippets inlined once."""
    seen = set()

    def expand(name):
        lines = []
        for line in open(os.path.join(ROOT, name)):
            if line.strip() == "#pragma once":
                continue
            found = re.match(r'#include "(.*)"', line)
            if not found:
                lines.append(line)
            elif found.group(1) == "config":
                lines.append("namespace config {\n")
                for key, value in parameters.items():
                    kind, text = ("bool", str(value).lower()) if isinstance(value, bool) else ("int", str(value))
                    lines.append(f"constexpr {kind} {key} = {text};\n")
                lines.append("}  // namespace config\n")
            elif found.group(1) not in seen:
                seen.add(found.group(1))
                lines.append(expand(found.group(1)))
        return "".join(lines)

    return expand(path)


class Nvrtc:
    def __init__(self):
        candidates = [os.environ.get("TURBOTUNE_NVRTC")]
        candidates += sorted(glob.glob(os.path.join(sys.prefix, "lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[23]")))
        candidates += ["libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13", "libnvrtc.so.12"]
        for name in filter(None, candidates):
            try:
                self.lib = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            sys.exit("no libnvrtc found; set TURBOTUNE_NVRTC")

    def compile(self, source, name, target):
        """(cubin, log); raises with the log."""
        lib, program = self.lib, ctypes.c_void_p()
        lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        options = [f"--gpu-architecture={target}", "-std=c++20", "--ptxas-options=-v", "-lineinfo"]
        if target != "old":
            options.append("--no-cache")
        array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        status = lib.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        log = log.value.decode()
        if status:
            raise RuntimeError(f"{name}: nvrtc error {status}\n{log}")
        lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetCUBIN(program, cubin)
        lib.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin.raw, log


def build_cached(nvrtc, cache, key, target):
    return compile_cached(nvrtc, cache, source_of(key[0], dict(key[1])), f"forward_{key[0]}.cu", target)


def compile_cached(nvrtc, cache, source, name, target):
    """(cubin, log) of a source, from the folder `cache` when it is there."""
    path = os.path.join(cache, hashlib.sha256(f"{target} {source}".encode()).hexdigest()[:32])
    if os.path.exists(path + ".cubin"):
        return open(path + ".cubin", "rb").read(), open(path + ".log").read()
    cubin, log = nvrtc.compile(source, name, target)
    os.makedirs(cache, exist_ok=True)
    for end, data in ((".log", log.encode()), (".cubin", cubin)):
        with open(path + end + ".part", "wb") as out:
            out.write(data)
        os.rename(path + end + ".part", path + end)
    return cubin, log


def report(log):
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores", log)
    return int(registers[-1]) if registers else -1, int(spills[-1]) if spills else -1


def mma_shared_bytes(c, head_dim, c2p, p2c, mask):
    tile = c["block_n"] * head_dim * 2
    chunks = (c["block_m"] + c["block_n"] - 1) // c["block_n"] + 1 + c["stages"] - 1
    total = 2 * c["stages"] * tile + chunks * tile * (c2p + p2c)
    if c2p or p2c:
        total += c["block_m"] * (c["block_n"] + 4) * 4
    return total + (8 if mask else 0)


def simt_shared_bytes(c, head_dim, c2p, p2c, mask, dropout=False):
    threads = c["threads"]
    pitch, step = head_dim + 4, c["dim_step"] + 4
    strip = c["block_m"] + c["block_n"]
    scores = c["block_n"] * step + (c2p + p2c) * strip * step
    values = c["block_n"] * pitch + c["block_m"] * (c["block_n"] + 4)
    return 4 * (c["block_m"] * pitch + max(scores, values) + (2 if mask else 0) + (2 * c["block_m"] if dropout else 0))


def mma_config(block_m, block_n, warps, stages, blocks):
    return {"block_m": block_m, "block_n": block_n, "warps": warps, "stages": stages, "blocks_per_sm": blocks}


MMA_CONFIGS = {
    64: [mma_config(*c) for c in [
        (128, 64, 4, 1, 2), (64, 32, 4, 2, 3), (128, 32, 4, 2, 2), (64, 64, 4, 1, 3), (64, 64, 4, 2, 2), (128, 32, 8, 2, 2),
        (64, 32, 4, 1, 3), (64, 64, 4, 1, 2), (128, 64, 4, 2, 1), (64, 32, 2, 2, 4), (64, 64, 2, 1, 3), (128, 64, 8, 2, 1),
        (64, 32, 4, 3, 3), (128, 32, 4, 3, 1), (32, 32, 2, 2, 6), (32, 64, 2, 1, 4)]],
    32: [mma_config(*c) for c in [
        (128, 64, 4, 2, 2), (128, 32, 4, 2, 2), (64, 64, 4, 2, 3), (64, 32, 4, 2, 4), (128, 64, 4, 1, 2), (64, 64, 4, 1, 3),
        (128, 64, 8, 2, 1), (64, 64, 2, 2, 4), (64, 32, 2, 2, 4), (64, 32, 4, 3, 4), (32, 32, 2, 2, 6), (32, 64, 2, 2, 6)]],
    128: [mma_config(*c) for c in [
        (64, 32, 4, 1, 2), (64, 32, 4, 2, 2), (64, 64, 4, 1, 2), (64, 32, 4, 2, 1), (64, 64, 4, 2, 1),
        (128, 32, 8, 1, 1), (128, 32, 8, 2, 1), (128, 64, 8, 1, 1)]],
}
SIMT_CONFIGS = [{"block_m": m, "block_n": n, "threads": t, "dim_step": d, "blocks_per_sm": b} for m, n, t, d, b in
                [(64, 64, 256, 16, 1), (64, 64, 256, 32, 1), (64, 64, 256, 16, 2), (64, 64, 256, 32, 2), (64, 64, 64, 32, 4),
                 (32, 32, 64, 16, 4), (32, 32, 64, 32, 4), (32, 32, 64, 32, 6)]]


def parameters(head_dim, dtype, c2p, p2c, mask, packed, lse, aligned, config):
    p = {"head_dim": head_dim, "dtype": DTYPES[dtype], "c2p": c2p, "p2c": p2c, "mask": mask, "packed": packed, "lse": lse,
         "dropout": False}
    p.update({k: v for k, v in config.items() if k != "template"})
    if config:
        shared = mma_shared_bytes if "warps" in config else simt_shared_bytes
        p.update(aligned=aligned, shared_bytes=shared(config, head_dim, c2p, p2c, mask))
    return p


def source_of(template, p):
    return render(f"disentangled_attention/forward_{template}.cu", p)


# --- compile ---------------------------------------------------------------------------------------------------------

def compile_all(args):
    nvrtc, jobs = Nvrtc(), []
    modes = [(True, True), (True, False), (False, True), (False, False)] if args.modes == "all" else [(True, True)]
    flags = [(False, False, False, True)] + ([(True, False, True, True), (False, True, True, False)] if args.modes == "all" else [])
    for target, (c2p, p2c), (mask, packed, lse, aligned) in itertools.product(args.targets.split(","), modes, flags):
        for head_dim, configs in MMA_CONFIGS.items():
            for config, dtype in itertools.product(configs, args.dtypes.split(",")):
                jobs.append(("mma", target, parameters(head_dim, dtype, c2p, p2c, mask, packed, lse, aligned, config),
                             mma_shared_bytes(config, head_dim, c2p, p2c, mask)))
        for head_dim, config in itertools.product((32, 64, 128), SIMT_CONFIGS if not args.mma_only else []):
            for dtype in (["f32"] + (["bf16"] if args.modes == "all" else [])):
                jobs.append(("simt", target, parameters(head_dim, dtype, c2p, p2c, mask, packed, lse, aligned, config),
                             simt_shared_bytes(config, head_dim, c2p, p2c, mask)))
    if args.only:
        jobs = [j for j in jobs if all(w in f"{j[0]} {j[2]}" for w in args.only.split("+"))]

    def one(job):
        template, target, p, shared = job
        try:
            cubin, log = nvrtc.compile(source_of(template, p), f"forward_{template}.cu", target)
        except RuntimeError as error:
            return job, None, str(error)
        if args.dump:
            open(args.dump, "wb").write(cubin)
        return job, report(log), log

    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (template, target, p, shared), result, log in pool.map(one, jobs):
            text = " ".join(f"{k}={int(v)}" for k, v in p.items())
            if result is None:
                failures += 1
                print(f"FAILED {template} {target} {text}\n{log[:3000]}")
            elif args.verbose or result[1] != 0:
                print(f"{template} {target} registers={result[0]} spills={result[1]} shared={shared} {text}")
            if result and "warning" in log:
                print(log)
    print(f"{len(jobs)} compiled, {failures} failed")
    return failures


# --- device ----------------------------------------------------------------------------------------------------------

class DropoutParams(ctypes.Structure):
    _fields_ = [("keys", ctypes.c_uint * 28), ("threshold", ctypes.c_uint * 8), ("fraction", ctypes.c_uint), ("offset", ctypes.c_uint), ("scale", ctypes.c_float)]


class ForwardParams(ctypes.Structure):
    _fields_ = ([(n, ctypes.c_void_p) for n in
                 "q k v position_key position_query mask cu_seqlens slots out lse workspace".split()] +
                [(n, ctypes.c_longlong) for n in
                 ("q_batch q_row q_head k_batch k_row k_head v_batch v_row v_head out_batch out_row out_head position_key_row "
                  "position_key_head position_query_row position_query_head mask_batch tokens").split()] +
                [(n, ctypes.c_int) for n in "batch heads length band span".split()] +
                [("scale_log2", ctypes.c_float), ("dropout", DropoutParams)])


class Kernel:
    cuda = None

    def __init__(self, cubin, name):
        Kernel.cuda = Kernel.cuda or ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()), "cuModuleGetFunction")

    @staticmethod
    def check(status, call):
        if status:
            raise RuntimeError(f"{call}: error {status}")

    def prepare(self, shared):
        self.check(self.cuda.cuFuncSetAttribute(self.function, 8, shared), f"shared memory of {shared} bytes")
        self.check(self.cuda.cuFuncSetAttribute(self.function, 9, 100), "carve-out")
        self.shared = shared

    def blocks_per_sm(self, threads):
        blocks = ctypes.c_int()
        self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(blocks), self.function, threads,
                                                              ctypes.c_size_t(self.shared))
        return blocks.value

    def launch(self, grid, threads, params, stream):
        array = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self.check(self.cuda.cuLaunchKernel(self.function, grid, 1, 1, threads, 1, 1, self.shared, ctypes.c_void_p(stream),
                                            array, None), "cuLaunchKernel")


def slot_table(buckets, longest):
    """Slot of every distance of the band, as make_slot_table()."""
    span = buckets if buckets > 0 else longest

    def slot(delta):
        if buckets <= 0:
            bucket = delta
        else:
            mid, size = buckets // 2, abs(delta)
            if size <= mid:
                bucket = delta
            else:
                far = math.ceil(math.log(size / mid) / math.log((longest - 1) / mid) * (mid - 1)) + mid
                bucket = far if delta > 0 else -far
        return min(max(bucket + span, 0), 2 * span - 1)

    band = 1
    while slot(band) != slot(10**6) or slot(-band) != slot(-10**6):
        band += 1
    return band, [slot(d) for d in range(-band, band + 1)], span


class Problem:
    def __init__(self, batch, heads, length, head_dim, dtype, c2p=True, p2c=True, mask=None, lengths=None, lse=False, buckets=256,
                 longest=512, strided=False, scale=1.0, seed=0):
        import torch
        self.torch = torch
        types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        self.batch, self.heads, self.length, self.head_dim, self.dtype = batch, heads, length, head_dim, dtype
        self.c2p, self.p2c, self.lse, self.packed = c2p, p2c, lse, lengths is not None
        self.band, slots, self.span = slot_table(buckets, longest)
        g = torch.Generator(device="cuda").manual_seed(seed)
        hidden = heads * head_dim
        rows = sum(lengths) if self.packed else batch * length
        pad = 3 if strided else 0   # an odd row stride: elements aligned to their own size only

        def tensor(n):
            data = torch.randn(n, 3 * hidden + pad if strided else hidden, device="cuda", generator=g) * scale
            return data.to(types[dtype])[:, pad:pad + hidden]

        self.q, self.k, self.v = tensor(rows), tensor(rows), tensor(rows)
        self.pk, self.pq = tensor(2 * self.span), tensor(2 * self.span)
        self.out = torch.full((rows, hidden), float("nan"), device="cuda", dtype=types[dtype])
        self.lse_out = torch.full((heads * rows,), float("nan"), device="cuda")
        self.slots = torch.tensor(slots, device="cuda", dtype=torch.int32)
        self.mask = mask.to("cuda").to(torch.uint8).contiguous() if mask is not None else None
        self.lengths = lengths
        starts = [0] + list(itertools.accumulate(lengths)) if self.packed else None
        self.cu = torch.tensor(starts, device="cuda", dtype=torch.int32) if self.packed else None
        self.factor = 1.0 / math.sqrt(head_dim * (1 + c2p + p2c))
        self.aligned = not strided

    def params(self):
        p = ForwardParams()
        for name in "q k v out".split():
            t = getattr(self, name)
            setattr(p, name, t.data_ptr())
            setattr(p, name + "_row", t.stride(0))
            setattr(p, name + "_batch", t.stride(0) * self.length)
            setattr(p, name + "_head", self.head_dim)
        p.position_key, p.position_key_row, p.position_key_head = self.pk.data_ptr(), self.pk.stride(0), self.head_dim
        p.position_query, p.position_query_row, p.position_query_head = self.pq.data_ptr(), self.pq.stride(0), self.head_dim
        p.mask, p.mask_batch = (self.mask.data_ptr(), self.mask.stride(0)) if self.mask is not None else (None, 0)
        p.cu_seqlens = self.cu.data_ptr() if self.packed else None
        p.slots, p.lse = self.slots.data_ptr(), self.lse_out.data_ptr() if self.lse else None
        p.tokens, p.batch, p.heads, p.length = self.q.shape[0], self.batch, self.heads, self.length
        p.band, p.span, p.scale_log2 = self.band, self.span, self.factor * math.log2(math.e)
        return p

    def reference(self):
        """float64 out and lse (base 2), shaped like the kernel's."""
        torch = self.torch
        out = torch.empty(self.out.shape, device="cuda", dtype=torch.float64)
        lse = torch.empty(self.lse_out.shape, device="cuda", dtype=torch.float64)
        rows = self.q.shape[0]
        pk = self.pk.double().view(-1, self.heads, self.head_dim)
        pq = self.pq.double().view(-1, self.heads, self.head_dim)
        start = 0
        for b in range(self.batch):
            length = self.lengths[b] if self.packed else self.length
            if length == 0:
                continue
            rows_b = slice(start, start + length)
            q, k, v = (t[rows_b].double().view(length, self.heads, self.head_dim).transpose(0, 1) for t in (self.q, self.k, self.v))
            delta = torch.arange(length, device="cuda")[:, None] - torch.arange(length, device="cuda")[None, :]
            slot = self.slots[delta.clamp(-self.band, self.band) + self.band].long()
            s = q @ k.transpose(1, 2)
            if self.c2p:
                s += torch.gather(q @ pk.permute(1, 2, 0), 2, slot.expand(self.heads, -1, -1))
            if self.p2c:
                s += torch.gather(k @ pq.permute(1, 2, 0), 2, slot.t().expand(self.heads, -1, -1)).transpose(1, 2)
            s *= self.factor
            if self.mask is not None:
                keep = self.mask[b].bool()
                s = s.masked_fill(~keep[None, None, :], float("-inf"))
                s = torch.where(keep[None, :, None], s, torch.zeros((), device="cuda", dtype=torch.float64))
            out[rows_b] = (torch.softmax(s, -1) @ v).transpose(0, 1).reshape(length, -1)
            log = torch.logsumexp(s, -1) / math.log(2)
            for h in range(self.heads):
                base = h * rows + start if self.packed else (b * self.heads + h) * length
                lse[base:base + length] = log[h]
            start += length
        return out, lse


class Bench:
    def __init__(self, cache):
        import torch
        self.torch, self.nvrtc, self.kernels, self.cache = torch, Nvrtc(), {}, cache
        torch.zeros(1, device="cuda")
        major, minor = torch.cuda.get_device_capability()
        self.target = f"sm_{major}{minor}" + ("a" if (major, minor) in ((9, 0), (10, 0), (12, 0)) else "")
        self.limit = torch.cuda.get_device_properties(0).shared_memory_per_block_optin

    def build(self, keys):
        missing = [k for k in dict.fromkeys(keys) if k not in self.kernels]

        def one(key):
            return build_cached(self.nvrtc, self.cache, key, self.target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for key, (cubin, log) in zip(missing, pool.map(one, missing)):
                kernel = Kernel(cubin, f"disentangled_attention_forward_{key[0]}")
                kernel.registers, kernel.spills = report(log)
                self.kernels[key] = kernel

    def ready(self, problem, template, config):
        """A callable that launches, or None when the config does not fit the device."""
        shape = problem.head_dim, problem.c2p, problem.p2c, problem.mask is not None
        shared = {"mma": mma_shared_bytes, "simt": simt_shared_bytes, "reference": lambda *_: 0}[template](config, *shape)
        if shared > self.limit:
            return None
        key = kernel_key(problem.case, template, problem.dtype, config)
        self.build([key])
        kernel = self.kernels[key]
        kernel.prepare(shared)
        threads = {"mma": lambda: 32 * config["warps"], "simt": lambda: config["threads"], "reference": lambda: 128}[template]()
        rows = 1 if template == "reference" else config["block_m"]
        grid = (problem.length + rows - 1) // rows * problem.heads * problem.batch
        params = problem.params()
        launch = lambda: kernel.launch(grid, threads, params, self.torch.cuda.current_stream().cuda_stream)
        launch.kernel, launch.threads = kernel, threads
        return launch

    def compare(self, problem, template, config, reference):
        """Largest errors of out and lse, relative to the largest values; inf when not finite."""
        torch = self.torch
        launch = self.ready(problem, template, config)
        if launch is None:
            return None
        problem.out.fill_(float("nan"))
        problem.lse_out.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        want, want_lse = reference
        if want.numel() == 0:
            return 0.0, 0.0

        def error(got, expected):
            e = (got.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
            return e.item() if torch.isfinite(got).all() else float("inf")

        return error(problem.out, want), error(problem.lse_out, want_lse) if problem.lse else 0.0


def masks(torch, kind, batch, length, seed):
    g = torch.Generator().manual_seed(seed)
    position = torch.arange(length)[None, :].expand(batch, -1)
    kept = torch.randint(1, length + 1, (batch, 1), generator=g)
    if kind == "none":
        return None
    if kind == "right":
        return position < kept
    if kind == "left":
        return position >= length - kept
    if kind == "holes":
        return torch.rand(batch, length, generator=g) < 0.6
    if kind == "all":
        return torch.zeros(batch, length, dtype=torch.bool)
    if kind == "last":
        return position == length - 1
    return position >= length // 2   # "half"


LENGTHS = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 2048]
MASKS = ["none", "right", "left", "holes", "all", "last", "half"]
MODES = [(True, True), (True, True), (True, False), (False, True), (False, False)]


def check_cases():
    cases = []
    for n, length in enumerate(LENGTHS):   # with and without a mask, modes and sizes in rotation
        for k in (0, 1 + n % 6):
            c2p, p2c = MODES[(n + k) % 5]
            cases.append(dict(batch=2, heads=3, length=length, head_dim=(64, 32, 128)[(n // 2 + k) % 3], dtype=("bf16", "f16")[n % 2],
                              c2p=c2p, p2c=p2c, mask=MASKS[k], lse=bool(k)))
    for kind in MASKS:
        cases.append(dict(batch=3, heads=2, length=700, head_dim=64, dtype="bf16", mask=kind, lse=True))
        cases.append(dict(batch=2, heads=1, length=300, head_dim=128, dtype="f16", mask=kind, lse=True, buckets=16, longest=40))
    cases += [dict(batch=2, heads=2, length=1500, head_dim=d, dtype="bf16") for d in (32, 64, 128)]
    cases += [dict(batch=1, heads=1, length=900, head_dim=64, dtype="bf16", c2p=c, p2c=p, buckets=32, longest=64)
              for c, p in ((True, False), (False, True), (False, False))]
    cases += [dict(batch=6, heads=2, length=800, head_dim=d, dtype="bf16", lengths=[0, 5, 800, 0, 129, 1], lse=True)
              for d in (32, 64, 128)]
    cases += [dict(batch=1, heads=2, length=8192, head_dim=64, dtype="bf16"),
              dict(batch=2, heads=2, length=200, head_dim=64, dtype="bf16", strided=True, mask="right"),
              dict(batch=1, heads=2, length=600, head_dim=64, dtype="f16", scale=60.0),
              dict(batch=1, heads=1, length=200, head_dim=64, dtype="f16", buckets=0, longest=100)]
    return cases


def kernel_key(case, template, dtype, config):
    p = parameters(case["head_dim"], dtype, case.get("c2p", True), case.get("p2c", True), case.get("mask", "none") != "none",
                   "lengths" in case, case.get("lse", False), not case.get("strided", False), config)
    return template, tuple(p.items())


def check_plan(full):
    """(case number, template, dtype, config), few distinct kernels unless `full`."""
    plan = []
    for n, case in enumerate(check_cases()):
        mma = MMA_CONFIGS[case["head_dim"]]
        mma = mma if full else mma[:2] if case["head_dim"] == 64 else mma[:1]
        plan += [(n, "mma", case["dtype"], c) for c in mma]
        plan += [(n, "simt", "f32", c) for c in (SIMT_CONFIGS if full else SIMT_CONFIGS[n % 2 * 5:][:1])]
        if n % 8 == 0:
            plan.append((n, "simt", case["dtype"], SIMT_CONFIGS[0]))
        if case["length"] < 600:
            plan.append((n, "reference", "f32", {}))
    return plan


def time_plan(args):
    case = dict(head_dim=args.head_dim, c2p=args.bias, p2c=args.bias)
    configs = MMA_CONFIGS[args.head_dim] if args.template == "mma" else SIMT_CONFIGS
    return case, [c for c in configs if not args.only or args.only in " ".join(map(str, c.values()))]


def prebuild(args):
    nvrtc, cases = Nvrtc(), check_cases()
    keys = [kernel_key(cases[n], t, d, c) for n, t, d, c in check_plan(False)] if not args.time_only else []
    case, configs = time_plan(args)
    keys += [kernel_key(case, args.template, args.dtype, c) for c in configs]
    keys = list(dict.fromkeys(keys))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(lambda key: report(build_cached(nvrtc, args.cache, key, args.target)[1]), keys))
    for (template, p), (registers, spills) in zip(keys, reports):
        if spills > 0:
            print(f"{template} registers={registers} spills={spills} " + " ".join(f"{k}={int(v)}" for k, v in p))
    print(f"{len(keys)} kernels in {args.cache}")
    return 0


def check(args):
    bench = Bench(args.cache)
    torch, cases, plan = bench.torch, check_cases(), check_plan(args.full)
    plan = [entry for entry in plan if args.shortest <= cases[entry[0]]["length"] <= args.longest]
    bench.build([kernel_key(cases[n], t, d, c) for n, t, d, c in plan])
    print("kernels ready")
    limit = {"f32": 2e-4, "f16": 2e-2, "bf16": 2e-2}
    problems, worst, failed = {}, {}, 0
    for n, template, dtype, config in plan:
        if (n, dtype) not in problems:
            case = dict(cases[n], dtype=dtype)
            case["mask"] = masks(torch, case.get("mask", "none"), case["batch"], case["length"], n)
            if dtype == "f32":
                case["scale"] = 1.0
            made = Problem(seed=n, **case)
            made.case = cases[n]
            problems[n, dtype] = made, made.reference()
        errors = bench.compare(problems[n, dtype][0], template, config, problems[n, dtype][1])
        if errors is None:
            continue
        worst[template, dtype] = max(worst.get((template, dtype), 0.0), *errors)
        if not max(errors) <= limit[dtype]:
            failed += 1
            if failed < 40:
                print("FAILED", template, dtype, "errors %.3g %.3g" % errors, config, cases[n])
    for key, value in worst.items():
        print(f"{key[0]:10} {key[1]:5} largest error {value:.3g}")
    print(f"{len(plan)} checks, {failed} failed")
    return failed


def time_all(args):
    bench = Bench(args.cache)
    torch = bench.torch
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    case, configs = time_plan(args)
    bench.build([kernel_key(case, args.template, args.dtype, c) for c in configs])
    for length in map(int, args.lengths.split(",")):
        made = Problem(max(1, args.tokens // length), 12, length, args.head_dim, args.dtype, c2p=args.bias, p2c=args.bias)
        made.case = case
        rows = []
        for config in configs:
            launch = bench.ready(made, args.template, config)
            if launch is None:
                continue
            times = []
            for sample in range(args.samples + 1):
                flush.zero_()
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                launch()
                stop.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(stop))
            rows.append((statistics.median(times[1:]), config, launch))
        for median, config, launch in sorted(rows, key=lambda r: r[0])[:args.top]:
            text = " ".join(f"{k}={v}" for k, v in config.items())
            print(f"L {length:5} {median:.4f} ms  registers {launch.kernel.registers} spills {launch.kernel.spills} "
                  f"blocks/SM {launch.kernel.blocks_per_sm(launch.threads)}  {text}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("compile")
    verb.add_argument("--targets", default="sm_80,sm_90a,sm_100a,sm_120a")
    verb.add_argument("--dtypes", default="bf16,f16")
    verb.add_argument("--modes", default="one", choices=("one", "all"))
    verb.add_argument("--mma-only", action="store_true")
    verb.add_argument("--only", help="substrings joined by + that a job's text must contain")
    verb.add_argument("--dump", help="write the (last) cubin here")
    verb.add_argument("--verbose", action="store_true")
    for name in ("prebuild", "check", "time"):
        verb = verbs.add_parser(name)
        verb.add_argument("--cache", default=os.path.join(ROOT, "..", "build", "da_cache"))
        verb.add_argument("--head-dim", type=int, default=64)
        verb.add_argument("--dtype", default="bf16")
        verb.add_argument("--template", default="mma")
        verb.add_argument("--no-bias", dest="bias", action="store_false")
        verb.add_argument("--only", help="only configs whose values, joined by blanks, contain this")
        verb.add_argument("--target", default="sm_90a")
        verb.add_argument("--time-only", action="store_true", help="not what check needs")
        verb.add_argument("--full", action="store_true", help="every config on every case")
        verb.add_argument("--lengths", default="128,256,512,1024,2048,4096,8192")
        verb.add_argument("--tokens", type=int, default=16384)
        verb.add_argument("--shortest", type=int, default=1, help="of the cases of check")
        verb.add_argument("--longest", type=int, default=1 << 30)
        verb.add_argument("--samples", type=int, default=11)
        verb.add_argument("--top", type=int, default=6)
    args = parser.parse_args()
    return {"compile": compile_all, "prebuild": prebuild, "check": check, "time": time_all}[args.verb](args)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
