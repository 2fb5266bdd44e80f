"""Which kernels a computation ran on a GPU, by torch's profiler."""

from collections.abc import Callable
from typing import Any

from .environment import torch_for


def kernel_names(work: Callable[[], Any], device: str) -> list[str]:
    """The names of the kernels that ``work`` ran, each once, in order; copies and fills apart. None on a CPU."""
    torch = torch_for(device)
    if device == "cpu":
        work()
        return []
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize(device)
    events = [event for event in profiler.events() if _on_gpu(torch, event)]
    events.sort(key=lambda event: event.time_range.start)
    names = dict.fromkeys(str(event.name) for event in events)
    return [name for name in names if not name.startswith(("Memcpy", "Memset"))]


def _on_gpu(torch: Any, event: Any) -> bool:
    return "CUDA" in str(event.device_type)
