/* test_heartbeat.c: text from another rank is shown without control sequences for the terminal. */
#include "train/ranks/heartbeat.h"

#include "tests/dist/ranks.h"
#include "tests/suite.h"

/* A job of one rank, which reads its own heartbeat. */
START_TEST(control_characters_in_names_are_replaced) {
    rm_kv *store;
    rm_group *group;
    rm_heartbeat *heartbeat;
    char who[300] = "";
    ck_ok(rm_kv_open(&(rm_kv_config){.path = meeting_place(), .size = 1}, &store));
    ck_ok(rm_group_open(&(rm_group_config){.engine = "local", .size = 1, .store = store}, &group));
    ck_ok(rm_heartbeat_start(group, store, "node\033[2Jseven", &heartbeat));
    for (int i = 0; i < 1000 && !strstr(who, "seven"); i++) {
        nap_ms(1);
        rm_heartbeat_silence(heartbeat, who, sizeof who);
    }
    ck_assert_msg(!strncmp(who, "rank 0 on node?[2Jseven (process ", 33), "'%s'", who);
    rm_heartbeat_stop(heartbeat);
    rm_group_close(group);
    rm_kv_close(store);
}
END_TEST

int main(void) {
    TCase *all = tcase_create("all");
    tcase_add_test(all, control_characters_in_names_are_replaced);
    return run_cases("train/heartbeat", all);
}
