"""Layers of images: from a tar that a stranger made to a folder that overlayfs can stack."""
