target_sources(${target} PRIVATE $<TARGET_OBJECTS:remat_ops_f64>)
