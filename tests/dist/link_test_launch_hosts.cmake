target_link_libraries(${target} PRIVATE remat_train_lib) # the command itself
