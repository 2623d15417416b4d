"""A reader of tar archives that strangers send: layers of images, saved images, and code of functions."""
