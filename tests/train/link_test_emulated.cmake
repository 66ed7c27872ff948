# remat_emulated: the program with a device "cuda" that is emulated (tests/cuda/program.c). Its own copies of the device, of the
# list of devices, and of the ops with their CUDA columns take the place of the library's.
if(TARGET fake_gpus AND TARGET remat_ops_emulated)
  file(GLOB cuda_device CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/engine/cuda/*.c)
  add_executable(remat_emulated ${CMAKE_SOURCE_DIR}/train/main.c ${CMAKE_CURRENT_SOURCE_DIR}/cuda/program.c
                 $<TARGET_OBJECTS:remat_ops_emulated> ${cuda_device} ${CMAKE_SOURCE_DIR}/engine/devices.c
                 ${CMAKE_SOURCE_DIR}/engine/build.c)
  set_target_properties(remat_emulated PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(remat_emulated PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(remat_emulated SYSTEM PRIVATE ${CUDART_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
  target_link_libraries(remat_emulated PRIVATE remat_train_lib fake_gpus OpenMP::OpenMP_C ${CMAKE_DL_LIBS} m)
  target_compile_definitions(remat_emulated PRIVATE REMAT_HAVE_CUDA RM_CUDA_EMULATED RM_CUDA_FOLDER=""
                             FAKE_CUDA="$<TARGET_FILE:fake_gpus>")
  add_dependencies(${target} remat_emulated)
  target_compile_definitions(${target} PRIVATE REMAT_EMULATED="$<TARGET_FILE:remat_emulated>")
endif()
