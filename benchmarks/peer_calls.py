"""One class for each implementation of disentangled attention that peers.py compares, all on the same tensors.

Each takes a Point with q, k, v [B, L, H*D], tables [2*span, H*D] and maybe a mask [B, L], and has
  forward()     the output [B, L, H*D] of inference
  train()       the output, with what backward() needs
  backward()    gradients of q, k, v and both tables by point.dout, after train()
Projections are left out everywhere: a peer whose interface starts from hidden states gets the projected tensors in place
of what its projections would return. What a peer prepares once per shape (index tables, masks) is made in advance.
"""
import importlib.metadata
import math

import torch
import torch.nn.functional as F

import capi


class Point:
    """The tensors of one comparison. `given` are leaves that require gradients, in this order."""

    def __init__(self, shape, dtype, masked, device, buckets=256, most=512, seed=0):
        self.batch, self.heads, self.length, self.head_dim = (shape[name] for name in
                                                              ("batch", "heads", "length", "head_dim"))
        self.dtype, self.device, self.buckets, self.most = dtype, device, buckets, most
        self.width = self.heads * self.head_dim
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=generator, device=device, dtype=torch.float32).to(dtype)

        rows = (self.batch, self.length, self.width)
        self.q, self.k, self.v, self.dout = (normal(*rows) for _ in range(4))
        self.position_key, self.position_query = (normal(2 * buckets, self.width) for _ in range(2))
        self.given = [x.requires_grad_() for x in (self.q, self.k, self.v, self.position_key, self.position_query)]
        self.lengths = self.mask = None
        if masked:   # right padding, one sequence whole
            self.lengths = torch.randint(1, self.length + 1, (self.batch,), generator=generator, device=device,
                                         dtype=torch.int32)
            self.lengths[0] = self.length
            self.mask = torch.arange(self.length, device=device)[None, :] < self.lengths[:, None]

    def heads_of(self, x):
        """[B, L, H*D] seen as [B, H, L, D]."""
        return x.view(self.batch, self.length, self.heads, self.head_dim).permute(0, 2, 1, 3)

    def rows_of(self, x):
        """[B, H, L, D] as [B, L, H*D]."""
        return x.transpose(1, 2).reshape(self.batch, self.length, self.width)

    def slots(self):
        """slot(i - j) as [L, L]."""
        positions = torch.arange(self.length, device=self.device)
        distance = (positions[:, None] - positions[None, :]).double()
        middle = self.buckets // 2
        far = torch.ceil(torch.log(distance.abs() / middle) / math.log((self.most - 1) / middle) * (middle - 1)) + middle
        bucket = torch.where(distance.abs() <= middle, distance, far * distance.sign())
        return (bucket.long() + self.buckets).clamp(0, 2 * self.buckets - 1)

    def relative_positions(self):
        return (self.slots() - self.buckets)[None]


class Peer:
    """An implementation that autograd differentiates: `call` gives the output from the leaves."""
    name = None
    package = None

    def __init__(self, point, options):
        self.point = point
        self.leaves = point.given
        self.about = {}

    @classmethod
    def version(cls):
        return importlib.metadata.version(cls.package)

    def forward(self):
        with torch.no_grad():
            return self.call()

    def train(self):
        self.out = self.call()
        return self.out.detach()

    def backward(self):
        return torch.autograd.grad(self.out, self.leaves, self.point.dout, retain_graph=True, allow_unused=True)

    def full_gradients(self, gradients):
        """As [B, L, H*D] and [2*span, H*D]."""
        return gradients


class Turbotune(Peer):
    name = "turbotune"

    def __init__(self, point, options):
        super().__init__(point, options)
        device = "cpu" if point.device.type == "cpu" else str(point.device.index or 0)
        self.runtime = capi.Runtime(device=device, policy=options.get("policy"), profile=options.get("profile"),
                                    library=options.get("library"))
        self.fields = {"batch": point.batch, "heads": point.heads, "length": point.length, "head_dim": point.head_dim,
                       "position_buckets": point.buckets, "max_relative_positions": point.most,
                       "mask": int(point.mask is not None)}
        self.config = options.get("config")
        self.plans, self.bound = {}, {}

    @classmethod
    def version(cls):
        return capi.load().turbotune_version().decode()

    def launch(self, name, make_tensors):
        point = self.point
        if name not in self.bound:
            plan = self.plans[name] = capi.Plan(self.runtime, name, point.dtype, config=self.config, **self.fields)
            tensors = make_tensors()
            workspace = plan.workspace(point.device)
            mask = point.mask.to(torch.uint8) if point.mask is not None else None
            self.bound[name] = (plan.bind(workspace, mask=mask, **tensors), tensors, workspace, mask)
            self.about = {"config": plan.config, "origin": plan.origin}
        self.plans[name].execute(self.bound[name][0])
        return self.bound[name][1]

    def inputs(self):
        return dict(zip(("q", "k", "v", "position_key", "position_query"), self.point.given))

    def outputs(self):
        point = self.point
        return {"out": torch.empty_like(point.dout),
                "lse": torch.empty(point.batch, point.heads, point.length, device=point.device)}

    def forward(self):
        return self.launch("inference", lambda: {**self.inputs(), "out": torch.empty_like(self.point.dout)})["out"]

    def train(self):
        self.saved = self.launch("training_forward", lambda: {**self.inputs(), **self.outputs()})
        return self.saved["out"]

    def backward(self):
        names = ("dq", "dk", "dv", "d_position_key", "d_position_query")
        tensors = self.launch("backward", lambda: {
            **self.saved, "dout": self.point.dout, **{name: torch.empty_like(leaf) for name, leaf in zip(names, self.leaves)}})
        return [tensors[name] for name in names]


class DisentangledFlash(Peer):
    """The trainable attention module of the package, with given tensors for its projections."""
    name = "disentangled_flash"
    package = "disentangled-flash"

    def __init__(self, point, options):
        super().__init__(point, options)
        from disentangled_flash import KernelTuningOptions, TritonTrainingDisentangledSelfAttention
        module = TritonTrainingDisentangledSelfAttention(
            deberta_config(point), tuning=KernelTuningOptions(mode=options.get("tuning", "auto")),
            assume_unpadded=point.mask is None)
        self.active = module.position_plan_cache.compact(point.length, point.device).active_slots
        # Of the table only the slots in use take part, as [H, slots, D].
        tables = [table.detach()[self.active].view(-1, point.heads, point.head_dim).transpose(0, 1).contiguous()
                  .requires_grad_() for table in (point.position_key, point.position_query)]
        self.leaves = point.given[:3] + tables
        module._project_qkv = lambda hidden: (point.q, point.k, point.v)
        module._project_active_positions = lambda embeddings, active: tables
        self.module = module
        self.mask = point.mask if point.mask is not None else torch.ones(point.batch, point.length, dtype=torch.bool,
                                                                         device=point.device)
        self.about = {"tuning": options.get("tuning", "auto")}

    def call(self):
        out = self.module(self.point.q, self.mask, rel_embeddings=self.point.position_key)[0]
        return out.view(self.point.batch, self.point.length, self.point.width) if out.dim() == 3 else self.point.rows_of(out)

    def full_gradients(self, gradients):
        tables = []
        for gradient in gradients[3:]:
            full = torch.zeros_like(self.point.position_key)
            full[self.active] = gradient.transpose(0, 1).reshape(len(self.active), self.point.width)
            tables.append(full)
        return [*gradients[:3], *tables]


class FlashDeberta(Peer):
    """The package's kernel function between the layout copies that its module makes."""
    name = "flashdeberta"
    package = "flashdeberta"

    def __init__(self, point, options):
        super().__init__(point, options)
        from flashdeberta.ops.flash_attention import flash_attention_with_disentangled
        self.attend = flash_attention_with_disentangled
        tables = [table.detach().view(-1, point.heads, point.head_dim).transpose(0, 1).unsqueeze(0).contiguous()
                  .requires_grad_() for table in (point.position_key, point.position_query)]
        self.leaves = point.given[:3] + tables

    def call(self):
        point = self.point
        q, k, v = (point.heads_of(x).contiguous() for x in (point.q, point.k, point.v))
        out = self.attend(q, k, v, point.lengths, self.leaves[3], self.leaves[4], False,
                          1 / math.sqrt(3 * point.head_dim), point.buckets, point.most)
        return point.rows_of(out)

    def full_gradients(self, gradients):
        return [*gradients[:3], *(gradient[0].transpose(0, 1).reshape(-1, self.point.width) for gradient in gradients[3:])]


class Given(torch.nn.Module):
    """Stands for a projection whose result is there."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor = tensor

    def forward(self, _):
        return self.tensor


def deberta_config(point):
    from transformers import DebertaV2Config
    return DebertaV2Config(hidden_size=point.width, num_attention_heads=point.heads, relative_attention=True,
                           pos_att_type=["c2p", "p2c"], position_buckets=point.buckets, max_relative_positions=point.most,
                           share_att_key=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class HuggingFace(Peer):
    """DisentangledSelfAttention of transformers, eager."""
    name = "hugging_face"
    package = "transformers"

    def __init__(self, point, options):
        super().__init__(point, options)
        from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention
        module = DisentangledSelfAttention(deberta_config(point)).to(point.device)
        for name, tensor in (("query_proj", point.q), ("key_proj", point.k), ("value_proj", point.v),
                             ("pos_key_proj", point.position_key[None]), ("pos_query_proj", point.position_query[None])):
            setattr(module, name, Given(tensor))
        self.module = module
        self.relative = point.relative_positions()
        keep = point.mask if point.mask is not None else torch.ones(point.batch, point.length, dtype=torch.bool,
                                                                    device=point.device)
        self.mask = (keep[:, None, :, None] & keep[:, None, None, :])

    def call(self):
        return self.module(self.point.q, self.mask, relative_pos=self.relative, rel_embeddings=self.point.position_key)[0]


class CudnnPlain(Peer):
    """Attention without position terms: what they cost beside it."""
    name = "cudnn_plain"
    package = "torch"

    def __init__(self, point, options):
        super().__init__(point, options)
        if point.mask is not None:
            raise NotImplementedError("measured without a mask only")
        self.leaves = point.given[:3]

    def call(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        point = self.point
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return point.rows_of(F.scaled_dot_product_attention(*(point.heads_of(x) for x in (point.q, point.k, point.v))))


PEERS = {peer.name: peer for peer in (Turbotune, DisentangledFlash, FlashDeberta, HuggingFace, CudnnPlain)}


def reference(point):
    """Output and gradients in float64, from the same rounded inputs."""
    q, k, v, key_table, query_table = (x.detach().double().requires_grad_() for x in point.given)
    slots = point.slots()

    def table(x):   # [1, H, slots, D]
        return x.view(-1, point.heads, point.head_dim).transpose(0, 1)[None]

    keep = point.mask[:, None, :, None] & point.mask[:, None, None, :] if point.mask is not None else None
    everywhere = slots.expand(point.batch, point.heads, point.length, point.length)
    scores = point.heads_of(q) @ point.heads_of(k).transpose(-1, -2)
    scores = scores + (point.heads_of(q) @ table(key_table).transpose(-1, -2)).gather(-1, everywhere)
    to_keys = (point.heads_of(k) @ table(query_table).transpose(-1, -2)).gather(-1, everywhere.transpose(-1, -2))
    scores = (scores + to_keys.transpose(-1, -2)) / math.sqrt(3 * point.head_dim)
    if keep is not None:
        scores = scores.masked_fill(~keep, torch.finfo(torch.float64).min)
    out = point.rows_of(torch.softmax(scores, -1) @ point.heads_of(v))
    gradients = torch.autograd.grad(out, (q, k, v, key_table, query_table), point.dout.double())
    return out.detach(), gradients
