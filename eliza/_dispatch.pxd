"""Which factory serves a bundle; nothing of it is for other Cython code."""
