target_link_libraries(${target} PRIVATE remat_train_lib remat_dist)
