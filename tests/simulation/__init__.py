"""The whole service without MLX, files, threads or real time, driven by one seed."""
