"""Experiments on the lab and proofs about it; the lab never imports this."""
