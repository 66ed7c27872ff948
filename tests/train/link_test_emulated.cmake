# remat_emulated: the program with a device "cuda" that is emulated (tests/cuda/program.c). Its own copies of the device, of the
# list of devices, and of the ops with their CUDA columns take the place of the library's.
if(TARGET fake_gpus AND TARGET remat_ops_emulated)
  add_executable(remat_emulated ${CMAKE_SOURCE_DIR}/train/main.c ${CMAKE_CURRENT_SOURCE_DIR}/cuda/program.c
                 $<TARGET_OBJECTS:remat_ops_emulated> $<TARGET_OBJECTS:cuda_device>
                 ${CMAKE_SOURCE_DIR}/engine/cuda/kernels.c ${CMAKE_SOURCE_DIR}/engine/device/devices.c ${CMAKE_SOURCE_DIR}/engine/build.c)
  set_target_properties(remat_emulated PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(remat_emulated PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(remat_emulated SYSTEM PRIVATE ${CUDART_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
  target_link_libraries(remat_emulated PRIVATE remat_train_lib fake_gpus OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)
  target_compile_definitions(remat_emulated PRIVATE REMAT_HAVE_CUDA RM_CUDA_EMULATED FAKE_CUDA="$<TARGET_FILE:fake_gpus>")
  add_dependencies(${target} remat_emulated)
  # The programs that wait for a GPU likewise, for whoever tries out run.sh (tests/gpu/check_run.sh).
  foreach(name versions products ops plans nccl cells)
    add_executable(emulated_gpu_${name} gpu/test_${name}.c ${CMAKE_CURRENT_SOURCE_DIR}/cuda/program.c
                   $<TARGET_OBJECTS:remat_ops_emulated> $<TARGET_OBJECTS:cuda_device>
                   ${CMAKE_SOURCE_DIR}/engine/cuda/kernels.c ${CMAKE_SOURCE_DIR}/engine/device/devices.c)
    set_target_properties(emulated_gpu_${name} PROPERTIES LINKER_LANGUAGE C)
    target_include_directories(emulated_gpu_${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_include_directories(emulated_gpu_${name} SYSTEM PRIVATE ${CUDART_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
    target_link_libraries(emulated_gpu_${name} PRIVATE remat_dist fake_gpus OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)
    target_compile_definitions(emulated_gpu_${name} PRIVATE REMAT_HAVE_CUDA RM_CUDA_EMULATED FAKE_CUDA="$<TARGET_FILE:fake_gpus>")
    add_dependencies(${target} emulated_gpu_${name})
  endforeach()
  target_sources(emulated_gpu_ops PRIVATE gpu/on_device.c $<TARGET_OBJECTS:remat_ops_f64>)
  target_compile_definitions(${target} PRIVATE REMAT_EMULATED="$<TARGET_FILE:remat_emulated>")
endif()
