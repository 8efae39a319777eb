"""The warp-specialized Hopper kernel: TMA, wgmma, persistent."""
