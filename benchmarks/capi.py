"""libturbotune.so for PyTorch programs: turbotune.h through ctypes, and disentangled attention on tensors.

The tensors stay PyTorch's: on a GPU both use the device's primary context, and launches go to PyTorch's current stream.
"""
import ctypes
import os
import shlex

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
PASSES = {"inference": 0, "training_forward": 1, "backward": 2}
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Error(RuntimeError):
    pass


def _struct(name, fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", ctypes.c_size_t)] + fields})


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "row", "head")]


RuntimeOptions = _struct("RuntimeOptions", [
    ("device", ctypes.c_char_p), ("policy", ctypes.c_char_p), ("profiles", ctypes.POINTER(ctypes.c_char_p)),
    ("profile_count", ctypes.c_size_t), ("discover_profiles", ctypes.c_int32), ("autotune_candidates", ctypes.c_int32),
    ("autotune_budget_ms", ctypes.c_double), ("fixed_config", ctypes.c_char_p), ("store_directory", ctypes.c_char_p),
    ("store_max_bytes", ctypes.c_int64), ("store_memory_only", ctypes.c_int32), ("reserved", ctypes.c_int32)])

_INTEGERS = ("pass_", "layout", "dtype", "math", "batch", "heads", "length", "head_dim")
_VIEWS = ("q", "k", "v", "out", "position_key", "position_query", "dout", "dq", "dk", "dv", "d_position_key",
          "d_position_query")
Problem = _struct("Problem", [(name, ctypes.c_int32) for name in _INTEGERS] + [("tokens", ctypes.c_int64)] +
                  [(name, ctypes.c_int32) for name in ("c2p", "p2c", "position_buckets", "max_relative_positions", "mask")] +
                  [("dropout", ctypes.c_float), ("mask_batch_stride", ctypes.c_int64)] +
                  [(name, Strides) for name in _VIEWS])

_POINTERS = ("q", "k", "v", "position_key", "position_query", "mask", "cu_seqlens", "out", "lse", "dout", "dq", "dk", "dv",
             "d_position_key", "d_position_query", "workspace")
Buffers = _struct("Buffers", [(name, ctypes.c_void_p) for name in _POINTERS] +
                  [("dropout_seed", ctypes.c_uint64), ("dropout_offset", ctypes.c_uint64)])


def load(path=None):
    """The library: `path`, else $TURBOTUNE_LIBRARY, else that of build/release."""
    path = path or os.environ.get("TURBOTUNE_LIBRARY") or os.path.join(HERE, "../build/release/libturbotune.so")
    library = ctypes.CDLL(path)
    for name in ("version", "last_error", "plan_config", "plan_origin"):
        getattr(library, "turbotune_" + name).restype = ctypes.c_char_p
    library.turbotune_plan_workspace_bytes.restype = ctypes.c_size_t
    for name in ("plan_config", "plan_origin", "plan_workspace_bytes", "plan_destroy", "runtime_destroy"):
        getattr(library, "turbotune_" + name).argtypes = [ctypes.c_void_p]
    return library


def aligned_bytes(count, device):
    """Uninitialised memory on a multiple of 256 bytes."""
    memory = torch.empty(count + 256, dtype=torch.uint8, device=device)
    return memory[-memory.data_ptr() % 256:][:max(count, 1)]


def portable(argv):
    """The arguments as a command for the repository's root, whatever folder that is here."""
    root = os.path.dirname(HERE)

    def local(word):
        if not os.path.isabs(word):
            return word
        path = os.path.relpath(word, root)
        return os.path.basename(word) if path.startswith("..") else path

    return shlex.join(local(word) for word in argv)


class Runtime:
    def __init__(self, device="auto", policy=None, profile=None, library=None):
        self.library = load(library)
        options = RuntimeOptions()
        self.library.turbotune_runtime_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
        options.device = device.encode()
        options.policy = policy.encode() if policy else None
        if profile:
            options.profiles = (ctypes.c_char_p * 1)(profile.encode())
            options.profile_count = 1
        self.handle = ctypes.c_void_p()
        self.check(self.library.turbotune_runtime_create(ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, status):
        if status:
            raise Error(self.library.turbotune_last_error().decode())

    def version(self):
        return self.library.turbotune_version().decode()


class Plan:
    """One pass of disentangled attention at one shape. Keyword arguments are fields of the problem; `strides` maps a
    view's name to (batch, row, head) in elements."""

    def __init__(self, runtime, name, dtype, config=None, strides=None, **fields):
        self.runtime, self.library = runtime, runtime.library
        problem = Problem()
        self.library.turbotune_disentangled_attention_problem_init(ctypes.byref(problem),
                                                                   ctypes.c_size_t(ctypes.sizeof(problem)))
        problem.pass_ = PASSES[name]
        problem.dtype = DTYPES[dtype]
        for field, value in fields.items():
            setattr(problem, field, value)
        for view, (batch, row, head) in (strides or {}).items():
            setattr(problem, view, Strides(batch, row, head))
        self.handle = ctypes.c_void_p()
        runtime.check(self.library.turbotune_disentangled_attention_plan_create(
            runtime.handle, ctypes.byref(problem), config.encode() if config else None, None,
            ctypes.byref(self.handle)))
        self.workspace_bytes = self.library.turbotune_plan_workspace_bytes(self.handle)
        self.config = self.library.turbotune_plan_config(self.handle).decode()
        self.origin = self.library.turbotune_plan_origin(self.handle).decode()

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.turbotune_plan_destroy(self.handle)

    def workspace(self, device):
        return aligned_bytes(self.workspace_bytes, device)

    def bind(self, workspace, seed=0, offset=0, **tensors):
        """The buffers of one execution; the tensors must outlive it."""
        buffers = Buffers()
        self.library.turbotune_disentangled_attention_buffers_init(ctypes.byref(buffers),
                                                                   ctypes.c_size_t(ctypes.sizeof(buffers)))
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(buffers, name, tensor.data_ptr())
        buffers.workspace = workspace.data_ptr() if workspace is not None else None
        buffers.dropout_seed, buffers.dropout_offset = seed, offset
        return buffers

    def execute(self, buffers, stream=None):
        if stream is None:
            stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
        self.runtime.check(self.library.turbotune_disentangled_attention_execute(
            self.handle, ctypes.byref(buffers), ctypes.c_void_p(stream)))
