"""The upstreams behind one seam, `Backend`: OpenAI-compatible servers, vLLM, the simulator."""
