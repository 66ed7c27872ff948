target_link_libraries(${target} PRIVATE remat_train_lib)
add_dependencies(${target} remat_program) # some run it
