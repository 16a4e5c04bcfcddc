"""The Llama family on a GPU: torch's products in passes of few shapes, captured as graphs."""
