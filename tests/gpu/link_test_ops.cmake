target_sources(${target} PRIVATE gpu/on_device.c $<TARGET_OBJECTS:remat_ops_f64>)
