include(${folder}/link_test_nccl.cmake)
