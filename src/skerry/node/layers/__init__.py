"""Layers of images: unpacks an untrusted tar to a folder for overlayfs."""
