"""scripts/peers/attention_kernels.py -- the attention kernels of the PyTorch that is installed here: found, checked, timed."""

import contextlib
import importlib
import importlib.metadata
import math
import os
import time

import load
import nvml

BACKENDS = {"sdpa-flash": "FLASH_ATTENTION", "sdpa-cudnn": "CUDNN_ATTENTION", "sdpa-efficient": "EFFICIENT_ATTENTION", "sdpa-math": "MATH"}
SPIN_CYCLES = 4_000_000  # some 2 ms: longer than launching a block takes


class Cannot(Exception):
    """A kernel that is not here (rule absent), or does not take the shape (rule kernel_cannot)."""

    def __init__(self, rule, why):
        super().__init__(why)
        self.rule = rule


class Case:
    """One kernel at one shape: operations to take in turn, one per copy of the tensors."""

    def __init__(self, about, operations, conditions):
        self.about, self.operations, self.conditions, self.turn = about, operations, conditions, 0

    def next(self):
        self.turn += 1
        return self.operations[self.turn % len(self.operations)]


class Wrong(Exception):
    """Of how this was called."""


class Torch:
    def __init__(self, options):
        import torch

        self.torch = torch
        cuda = torch.cuda.is_available()
        if options.device == "cuda" and not cuda:
            raise Wrong(f"no GPU that PyTorch {torch.__version__} can use; right would be --device cpu")
        self.cuda = cuda and options.device != "cpu"
        self.gpu = nvml.Nvml(gpu_uuid(torch)) if self.cuda else None
        self.place = torch.device("cuda" if self.cuda else "cpu")
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        self.versions = {"torch": torch.__version__}
        if self.cuda:
            self.versions.update(cuda=torch.version.cuda, cudnn=str(torch.backends.cudnn.version()), gpu=torch.cuda.get_device_name())
        else:
            self.versions["threads"] = torch.get_num_threads()
        self.found, self.checked, self.shape, self.given = {}, set(), None, []

    # kernels: q, k, v, o as [batch][seq][heads][head_dim]

    def kernel(self, name):
        """(function of q, k, v, causal; words for the row)."""
        if name not in self.found:
            find = self.flash if name.startswith("flash_attention") else self.sdpa
            self.found[name] = find(name)
        return self.found[name]

    def sdpa(self, name):
        torch = self.torch
        backend = BACKENDS.get(name)
        try:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            chosen = getattr(SDPBackend, backend) if backend else None
        except (ImportError, AttributeError):
            raise Cannot("absent", f"PyTorch {torch.__version__} has no backend {name}")

        def attend(q, k, v, causal):
            gqa = {"enable_gqa": True} if k.shape[2] != q.shape[2] else {}
            with sdpa_kernel(chosen) if backend else contextlib.nullcontext():
                o = torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, **gqa
                )
            return o.transpose(1, 2)

        return attend, f"PyTorch {torch.__version__} {name}"

    def flash(self, name):
        if not self.cuda:
            raise Cannot("kernel_cannot", f"{name} computes on GPUs only")
        module = self.flash_module(name)
        function = module.flash_attn_func

        def attend(q, k, v, causal):
            o = function(q, k, v, causal=causal)
            return o[0] if isinstance(o, tuple) else o

        version = getattr(module, "__version__", "") or installed_version(name)
        self.versions[name] = version or "unknown"
        return attend, f"{module.__name__} {version}"

    def flash_module(self, name):
        wanted = "flash_attn" if name == "flash_attention_2" else "flash_attn_interface"
        try:
            return importlib.import_module(wanted)
        except (ImportError, OSError) as why:
            reason = f"{wanted}: {why}"
        os.environ["HF_HUB_OFFLINE"] = "1"  # what was not fetched before is absent
        try:
            from kernels import get_kernel

            return get_kernel("kernels-community/flash-attn" + name[-1])
        except Exception as why:  # the hub's client has many ways to say no
            raise Cannot("absent", f"{reason}; kernels: {type(why).__name__}")

    def dispatched(self, q, k, v, causal):
        """Which backend sdpa takes, where this PyTorch tells."""
        try:
            from torch.nn.attention import SDPBackend

            args = [t.transpose(1, 2) for t in (q, k, v)]
            more = {"enable_gqa": True} if k.shape[2] != q.shape[2] else {}
            choice = self.torch._fused_sdp_choice(*args, None, 0.0, causal, **more)
            return next((n for n, b in BACKENDS.items() if int(getattr(SDPBackend, b, -9).value) == choice), "")[5:]
        except Exception:  # a private function: it may be gone or take other arguments
            return ""

    # cases

    def tensors(self, batch, seq, heads, kv_heads, dim, dtype, grad):
        torch = self.torch
        return [
            torch.randn(batch, seq, h, dim, device=self.place, dtype=torch.float32).to(dtype).requires_grad_(grad)
            for h in (heads, kv_heads, kv_heads)
        ]

    def check(self, name, options):
        """Against the formula in double precision: at most twice the error of the formula in the kernel's own type."""
        torch, key = self.torch, (name, options.dtype, options.causal, options.head_dim)
        if key in self.checked:
            return
        attend, _ = self.kernel(name)
        group = options.heads // options.kv_heads
        given = self.tensors(1, 113, 2 * group, 2, options.head_dim, self.dtypes[options.dtype], True)
        exact = [t.detach().double().requires_grad_() for t in given]
        plain = [t.detach().clone().requires_grad_() for t in given]
        do = torch.randn_like(given[0])
        sides = []
        for inputs, function in ((given, attend), (exact, self.formula), (plain, self.formula)):
            o = self.guarded(lambda: function(*inputs, bool(options.causal)))
            grads = self.guarded(lambda: torch.autograd.grad(o, inputs, do.to(o.dtype)))
            sides.append([t.detach().double() for t in (o, *grads)])
        for what, got, want, near in zip(("o", "dq", "dk", "dv"), *sides):
            size = want.abs().max().item()
            allowed = 2 * (near - want).abs().max().item() + 2 * torch.finfo(self.dtypes[options.dtype]).eps * size
            error = (got - want).abs().max().item()
            if not error <= allowed:
                raise ArithmeticError(f"{what} of {name} is off by {error:.3g}, right would be at most {allowed:.3g}")
        self.checked.add(key)

    def formula(self, q, k, v, causal):
        torch = self.torch
        group = q.shape[2] // k.shape[2]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        if causal:
            hidden = torch.ones(q.shape[2], k.shape[2], device=q.device, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        return (scores.softmax(3) @ v).transpose(1, 2)

    def guarded(self, call):
        try:
            return call()
        except (RuntimeError, TypeError, ValueError, AssertionError) as why:
            memory = isinstance(why, getattr(self.torch, "OutOfMemoryError", ()))
            if memory:
                self.torch.cuda.empty_cache()
            raise Cannot("memory" if memory else "kernel_cannot", why)

    def prepare(self, name, options, seq, direction):
        self.check(name, options)
        attend, about = self.kernel(name)
        causal, backward = bool(options.causal), direction == "bwd"
        given = self.guarded(lambda: self.inputs(options, seq))
        operations = [self.guarded(lambda: self.operation(attend, *one, causal, backward)) for one in given]
        if name == "sdpa":
            about += f" ({self.dispatched(*given[0], causal) or 'backend unknown'})"
        return Case(about, operations, {"threads": self.torch.get_num_threads(), "copies": len(given)})

    def inputs(self, options, seq):
        """q, k, v, as many times as there are copies; all kernels of a shape share them."""
        shape = (options.batch, seq, options.heads, options.kv_heads, options.head_dim, self.dtypes[options.dtype], True)
        if self.shape != shape:
            self.shape, self.given = None, []
            self.given = [self.tensors(*shape) for _ in range(self.copies(options, seq))]
            self.shape = shape
        return self.given

    def copies(self, options, seq):
        """hot: 1; cold: as many as three times the GPU's cache holds."""
        if options.buffers == "hot":
            return 1
        cache = self.torch.cuda.get_device_properties(self.place).L2_cache_size if self.cuda else 256 << 20
        width = self.torch.finfo(self.dtypes[options.dtype]).bits // 8
        bytes_each = options.batch * seq * (2 * options.heads + 2 * options.kv_heads) * options.head_dim * width
        return max(2, min(64, -(-3 * cache // bytes_each)))

    def operation(self, attend, q, k, v, causal, backward):
        torch = self.torch
        if not backward:

            def forward():
                with torch.no_grad():
                    attend(q, k, v, causal)

            return forward
        o = attend(q, k, v, causal)
        do = torch.randn_like(o)
        return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    # time

    def time(self, case, iterations, warmups):
        return self.guarded(lambda: (self.time_cuda if self.cuda else self.time_cpu)(case, iterations, warmups))

    def time_cpu(self, case, iterations, warmups):
        times = []
        for i in range(-warmups, iterations):
            operation = case.next()
            begin = time.perf_counter_ns()
            operation()
            if i >= 0:
                times.append((time.perf_counter_ns() - begin) / 1e3)
        return times

    def time_cuda(self, case, iterations, warmups):
        """Warm-ups (one or more), then load for as long as the last of them says, then what counts."""
        known_us = self.behind_spin(case, warmups)[0][-1]
        load_us = load.back_to_back(self.torch.cuda, lambda: case.next()(), load.iterations(known_us))
        case.conditions["load_us"] = min(load_us, case.conditions.get("load_us", load_us))
        times, ungated = self.behind_spin(case, iterations)
        if ungated:
            case.conditions["ungated"] = case.conditions.get("ungated", 0) + ungated
        return times

    def behind_spin(self, case, iterations):
        """Microseconds each, back to back, behind one spin that is longer than launching takes: neither launches are in the times, nor
        pauses between them in which clocks rise. And how many the device began while they were launched: launches may be in their times."""
        cuda, pairs, ungated = self.torch.cuda, [], 0
        cuda.synchronize()
        cuda._sleep(SPIN_CYCLES)
        for _ in range(iterations):
            operation = case.next()
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            first.record()
            operation()
            last.record()
            ungated += first.query()
            pairs.append((first, last))
        cuda.synchronize()
        return [first.elapsed_time(last) * 1e3 for first, last in pairs], ungated

    def conditions(self):
        """Clocks and what held them, from the driver where it tells."""
        return self.gpu.now() if self.cuda else {}


def gpu_uuid(torch):
    """Of the GPU that PyTorch uses, as its driver names it; None where PyTorch does not tell."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    return "GPU-" + uuid.removeprefix("GPU-") if uuid else None


def installed_version(name):
    for package in ("flash_attn",) if name == "flash_attention_2" else ("flash_attn_3", "flash_attn_interface"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return ""
