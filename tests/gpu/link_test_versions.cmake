target_link_libraries(${target} PRIVATE remat_dist)
