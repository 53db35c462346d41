"""scripts/peers/load.py, and that attention.py and ulysses_nccl.py load a GPU before they time it: on a GPU that is a counter of microseconds."""

import contextlib
import io
import json
import os
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts", "peers"))

import load  # noqa: E402
from attention_kernels import Case, Torch  # noqa: E402


class Gpu:
    """torch.cuda with a clock that only its work moves; `did` is what it was told, and `waiting` how much the host ran ahead at most."""

    def __init__(self):
        self.us, self.did, self.ahead, self.waiting, self.early = 0, [], 0, 0, False

    def compute(self, us):
        self.us += us
        self.did.append("run")
        self.ahead += 1
        self.waiting = max(self.waiting, self.ahead)

    def synchronize(self):
        self.ahead = 0
        self.did.append("wait")

    def _sleep(self, cycles):
        self.did.append("spin")

    def Event(self, enable_timing):
        event = mock.Mock()
        event.record = lambda: setattr(event, "at", self.us)
        event.query = lambda: self.early
        event.elapsed_time = lambda last: (last.at - event.at) / 1e3
        return event


def one_line(did):
    """Runs of the same word as (word, how often), waits left out."""
    out = []
    for word in did:
        if word != "wait":
            out[-1:] = [(word, out[-1][1] + 1)] if out and out[-1][0] == word else [*out[-1:], (word, 1)]
    return out


class Load(unittest.TestCase):
    def test_iterations(self):
        for us, wanted in ((1000, 120), (1010, 119), (20, 6000), (79_000, 2), (81_000, 1), (239_000, 1), (1.19e6, 1), (1.21e6, 0), (0, 0)):
            self.assertEqual(load.iterations(us), wanted, us)

    def test_back_to_back(self):
        gpu = Gpu()
        self.assertEqual(load.back_to_back(gpu, lambda: gpu.compute(10.25), 1000), 10250)
        self.assertEqual((gpu.did.count("run"), gpu.waiting), (1000, load.AT_ONCE))
        self.assertEqual(load.back_to_back(None, None, 0), 0)


class Attention(unittest.TestCase):
    def torch(self, gpu):
        made = Torch.__new__(Torch)  # without PyTorch
        made.torch, made.cuda = SimpleNamespace(cuda=gpu), gpu is not None
        return made

    def test_blocks_are_loaded(self):
        gpu = Gpu()
        device = self.torch(gpu)
        took = 1000
        case = Case("", [lambda: gpu.compute(took)], {"copies": 1})
        self.assertEqual(device.time(case, 5, 3), [1000] * 5)
        self.assertEqual(one_line(gpu.did), [("spin", 1), ("run", 3 + 120), ("spin", 1), ("run", 5)])
        self.assertEqual(case.conditions, {"copies": 1, "load_us": 120_000})
        for took, shortest in ((50_000, 100_000), (1000, 100_000), (1.3e6, 0)):  # 2, 120 and no iterations
            self.assertEqual(device.time(case, 2, 1), [took] * 2)
            self.assertEqual(case.conditions["load_us"], shortest)

    def test_launches_that_may_be_in_the_time_are_counted(self):
        gpu = Gpu()
        case = Case("", [lambda: gpu.compute(1000)], {})
        self.torch(gpu).time(case, 5, 3)
        self.assertNotIn("ungated", case.conditions)
        gpu.early = True
        self.torch(gpu).time(case, 5, 1)
        self.assertEqual(case.conditions["ungated"], 5)

    def test_load_walks_through_the_copies(self):
        gpu, seen = Gpu(), []
        case = Case("", [lambda i=i: (seen.append(i), gpu.compute(1000)) for i in range(3)], {})
        self.torch(gpu).time(case, 5, 3)
        self.assertEqual(seen, [(i + 1) % 3 for i in range(3 + 120 + 5)])

    def test_a_cpu_is_not(self):
        ran = []
        case = Case("", [lambda: ran.append(1)], {"copies": 1})
        self.assertEqual(len(self.torch(None).time(case, 5, 3)), 5)
        self.assertEqual((len(ran), case.conditions), (3 + 5, {"copies": 1}))


class Numbers(list):
    def tolist(self):
        return list(self)


def two_ranks(numbers, how=None):
    """The other rank took twice as long, and loaded for 7 us less."""
    if how:
        numbers[:] = [x * 2 if how == "max" else x - 7 for x in numbers]


class Ulysses(unittest.TestCase):
    def setUp(self):
        self.gpu = Gpu()
        ranks = SimpleNamespace(ReduceOp=SimpleNamespace(MAX="max", MIN="min"), all_reduce=two_ranks, barrier=lambda: None,
                                get_rank=lambda group=None: 0, get_world_size=lambda group=None: 2)  # fmt: skip
        torch = mock.MagicMock(cuda=self.gpu, distributed=ranks, tensor=lambda numbers, **_: Numbers(numbers), ones=lambda n, **_: Numbers([1] * n))
        modules = {"torch": torch, "torch.distributed": ranks, "torch.nn": torch.nn, "torch.nn.attention": torch.nn.attention}
        with mock.patch.dict(sys.modules, modules):
            for name in ("ulysses_gloo", "ulysses_nccl"):
                sys.modules.pop(name, None)
            import ulysses_nccl
        self.nccl = ulysses_nccl

    def test_samples_are_loaded(self):
        self.assertEqual(self.nccl.timed(lambda: self.gpu.compute(1000), "gated", 2, loaded=True), {"times_us": [2000] * 2, "load_us": 60_000 - 7})
        once = [("spin", 1), ("run", 1)]
        self.assertEqual(one_line(self.gpu.did), [*once * 2, *[("spin", 1), ("run", 1 + 60)] * 2, *once])

    def test_samples_that_are_not(self):
        self.assertEqual(self.nccl.timed(lambda: self.gpu.compute(1000), "gated", 2), {"times_us": [2000] * 2})
        self.assertEqual(self.gpu.did.count("run"), 3 + 2)

    def test_layers_are_and_exchanges_are_not(self):
        options, out = SimpleNamespace(heads=4, kv_heads=2, head_dim=8, samples=3), io.StringIO()
        self.nccl.path = SimpleNamespace(layer=lambda *_: self.gpu.compute(1000), to_heads=lambda x: None, to_seq=lambda x: self.gpu.compute(30))
        with contextlib.redirect_stdout(out):
            self.nccl.exchange(64, options)
            self.nccl.layer(64, options, "flash")
        rows = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual([(r["row"], r.get("load_us")) for r in rows], [("exchange", None)] * 2 + [("layer", 60_000 - 7)] * 2)
        self.assertEqual([r["median_us"] for r in rows], [60] * 2 + [2000] * 2)


if __name__ == "__main__":
    unittest.main()
