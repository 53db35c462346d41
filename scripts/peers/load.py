"""scripts/peers/load.py -- what a GPU computes untimed, so that what is timed next finds it as a long run would.

A GPU that was idle runs at boost clocks for some 50 ms, and from 100 ms on at what its power limit allows: on an H200, attention and
products in bf16 then take 13 to 18 % longer. Training lives in the second state, so that one is timed.
"""

LOAD_MS = 120
AT_ONCE = 64  # iterations that are launched before the host waits for them: the queue stays short


def iterations(us):
    """How many of US microseconds each last about LOAD_MS, at least one; none where one takes ten times that and is load enough itself."""
    return max(1, int(LOAD_MS * 1e3 / us + 0.5)) if 0 < us < 10e3 * LOAD_MS else 0


def back_to_back(cuda, operation, count):
    """Whole microseconds that COUNT iterations took on the current stream; CUDA is torch.cuda."""
    if count == 0:
        return 0
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for i in range(1, count + 1):
        operation()
        if i % AT_ONCE == 0:
            cuda.synchronize()
    last.record()
    last.synchronize()
    return round(first.elapsed_time(last) * 1e3)
