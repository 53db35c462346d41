"""scripts/peers/nvml.py against a library that answers as the driver's does. Usage: test_nvml.py FAKE_NVML."""

import ctypes
import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "peers"))
sys.dont_write_bytecode = True

import nvml  # noqa: E402

FAKE = sys.argv.pop(1) if len(sys.argv) > 1 else ""
UUID = "GPU-{}aaaaaaa-0000-0000-0000-000000000000"


def setenv(name, value):
    """Of C, whose library is loaded once and reads it each time."""
    ctypes.CDLL(None).setenv(name.encode(), value.encode(), 1)


class Now(unittest.TestCase):
    def setUp(self):
        self.env = mock.patch.dict(os.environ, {"SPTUNE_NVML": FAKE})
        self.env.start()
        self.addCleanup(self.env.stop)
        setenv("SPTUNE_TEST_NVML", "shared")  # two GPUs, three processes of others on the first

    def test_told(self):
        setenv("SPTUNE_TEST_GPU", "1440,3201,57,694000,4,0,0,2")
        told = {"sm_mhz": 1440.0, "memory_mhz": 3201.0, "gpu_celsius": 57.0, "gpu_watts": 694.0, "held_by_power": 1}
        self.assertEqual(nvml.Nvml(UUID.format(1)).now(), told | {"gpu_others": 2})
        self.assertEqual(nvml.Nvml().now(), told | {"gpu_others": 5})
        setenv("SPTUNE_TEST_GPU", "1980,3201,40,120000,96,0,0,0")
        self.assertEqual({k: v for k, v in nvml.Nvml().now().items() if k.startswith("held")}, {"held_by_heat": 1})

    def test_not_told(self):
        ctypes.CDLL(None).unsetenv(b"SPTUNE_TEST_GPU")
        self.assertEqual(nvml.Nvml().now(), {"gpu_others": 3})
        self.assertEqual(nvml.Nvml(UUID.format(7)).now(), {})  # there is no such GPU
        for library in ("/nowhere/libnvidia-ml.so.1", "libm.so.6"):  # none; one that knows no such call
            os.environ["SPTUNE_NVML"] = library
            self.assertEqual(nvml.Nvml().now(), {})
        old = nvml.Nvml()
        old.library, old.gpu = None, ctypes.c_void_p()
        self.assertEqual(old.now(), {})


if __name__ == "__main__":
    unittest.main()
