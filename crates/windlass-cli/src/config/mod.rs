//! The config file `windlass.toml`: its format, its checker, and the tools it describes.
