/* Uses ZooKeeper's client for C as programs do: client DIRECT THROUGH_A_PROXY
 *
 * The program prints "cut" to make the proxy close its connections and refuse new ones, and "heal" to make it accept
 * connections again. After each, it reads a line that says that this is done. At its end it prints "ok". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zookeeper/zookeeper.h>

#define TIMEOUT_MS 20000
#define PATIENCE_S 30

#define SAME(wanted, found)                                                                           \
    do {                                                                                              \
        long long wanted_ = (wanted), found_ = (found);                                               \
        if (wanted_ != found_) {                                                                      \
            fprintf(stderr, "line %d: %s is %lld, not %lld\n", __LINE__, #found, found_, wanted_);    \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define TRUE(condition) SAME(1, !!(condition))

/* The events of one handle or one watch. */
struct seen {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int connected, disconnected, type;
    char path[256];
};

static void seen_init(struct seen *seen) {
    memset(seen, 0, sizeof *seen);
    pthread_mutex_init(&seen->mutex, NULL);
    pthread_cond_init(&seen->changed, NULL);
}

static void on_session(zhandle_t *handle, int type, int state, const char *path, void *context) {
    struct seen *seen = context;
    (void)handle, (void)path;
    if (type != ZOO_SESSION_EVENT) return;
    pthread_mutex_lock(&seen->mutex);
    if (state == ZOO_CONNECTED_STATE) seen->connected++;
    if (state == ZOO_CONNECTING_STATE) seen->disconnected++;
    pthread_cond_broadcast(&seen->changed);
    pthread_mutex_unlock(&seen->mutex);
}

static void on_event(zhandle_t *handle, int type, int state, const char *path, void *context) {
    struct seen *seen = context;
    (void)handle, (void)state;
    if (type == ZOO_SESSION_EVENT) return;
    pthread_mutex_lock(&seen->mutex);
    seen->type = type;
    snprintf(seen->path, sizeof seen->path, "%s", path);
    pthread_cond_broadcast(&seen->changed);
    pthread_mutex_unlock(&seen->mutex);
}

static void wait_until(struct seen *seen, int *counter, int wanted, int line) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&seen->mutex);
    while (*counter < wanted) {
        if (pthread_cond_timedwait(&seen->changed, &seen->mutex, &deadline)) {
            fprintf(stderr, "line %d: nothing happened for %d s\n", line, PATIENCE_S);
            exit(1);
        }
    }
    pthread_mutex_unlock(&seen->mutex);
}

static void expect_event(struct seen *seen, int type, const char *path, int line) {
    wait_until(seen, &seen->type, 1, line);
    if (seen->type != type || strcmp(seen->path, path)) {
        fprintf(stderr, "line %d: event %d of %s, not %d of %s\n", line, seen->type, seen->path, type, path);
        exit(1);
    }
    seen->type = 0;
}

static zhandle_t *open_session(const char *address, struct seen *seen, const clientid_t *id) {
    seen_init(seen);
    zhandle_t *handle = zookeeper_init(address, on_session, TIMEOUT_MS, id, seen, 0);
    TRUE(handle);
    wait_until(seen, &seen->connected, 1, __LINE__);
    return handle;
}

static void make(zhandle_t *handle, const char *path, const char *data) {
    SAME(ZOK, zoo_create(handle, path, data, strlen(data), &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0));
}

static void ask(const char *order) {
    char done[16];
    printf("%s\n", order);
    fflush(stdout);
    TRUE(fgets(done, sizeof done, stdin));
}

static void nodes(zhandle_t *handle) {
    char path[64], data[64];
    int length = sizeof data;
    struct Stat stat;
    struct String_vector children;
    struct ACL_vector acl;
    make(handle, "/n", "one");
    SAME(ZNODEEXISTS, zoo_create(handle, "/n", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    SAME(ZNONODE, zoo_create(handle, "/no/n", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    SAME(ZOK, zoo_get(handle, "/n", 0, data, &length, &stat));
    TRUE(length == 3 && !memcmp(data, "one", 3) && stat.version == 0 && stat.dataLength == 3);
    SAME(ZBADVERSION, zoo_set(handle, "/n", "two", 3, 7));
    SAME(ZOK, zoo_set2(handle, "/n", "two", 3, 0, &stat));
    SAME(1, stat.version);
    SAME(ZOK, zoo_create2(handle, "/n/s-", "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE, path,
                          sizeof path, &stat));
    TRUE(!strcmp(path, "/n/s-0000000000") && stat.ephemeralOwner == zoo_client_id(handle)->client_id);
    SAME(ZNOCHILDRENFOREPHEMERALS, zoo_create(handle, "/n/s-0000000000/x", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0));
    SAME(ZNOTEMPTY, zoo_delete(handle, "/n", -1));
    SAME(ZOK, zoo_create(handle, "/n/c", "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_CONTAINER, NULL, 0));
    SAME(ZOK, zoo_get_children2(handle, "/n", 0, &children, &stat));
    TRUE(children.count == 2 && stat.numChildren == 2 && stat.cversion == 2);
    deallocate_String_vector(&children);
    SAME(ZOK, zoo_delete(handle, "/n/c", 0));
    SAME(ZOK, zoo_delete(handle, path, 0));
    SAME(ZOK, zoo_set_acl(handle, "/n", -1, &ZOO_READ_ACL_UNSAFE));
    SAME(ZOK, zoo_get_acl(handle, "/n", &acl, &stat));
    TRUE(acl.count == 1 && acl.data[0].perms == ZOO_PERM_READ && stat.aversion == 1);
    deallocate_ACL_vector(&acl);
    SAME(ZNOAUTH, zoo_set(handle, "/n", "", 0, -1));
    SAME(ZOK, zoo_delete(handle, "/n", 1));
}

static void multi(zhandle_t *handle) {
    zoo_op_t ops[4];
    zoo_op_result_t results[4];
    char path[64];
    struct Stat stat;
    zoo_create_op_init(&ops[0], "/m", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    zoo_create_op_init(&ops[1], "/m/s-", "x", 1, &ZOO_OPEN_ACL_UNSAFE, ZOO_SEQUENCE, path, sizeof path);
    zoo_set_op_init(&ops[2], "/m", "data", 4, 0, &stat);
    zoo_check_op_init(&ops[3], "/m", 1);
    SAME(ZOK, zoo_multi(handle, 4, ops, results));
    TRUE(!strcmp(path, "/m/s-0000000000") && stat.version == 1);
    /* If one operation of a transaction fails, none is executed. */
    zoo_delete_op_init(&ops[0], "/m/s-0000000000", 0);
    zoo_check_op_init(&ops[1], "/m", 7);
    zoo_delete_op_init(&ops[2], "/m", -1);
    SAME(ZBADVERSION, zoo_multi(handle, 3, ops, results));
    SAME(ZOK, results[0].err);
    SAME(ZBADVERSION, results[1].err);
    SAME(ZRUNTIMEINCONSISTENCY, results[2].err);
    zoo_check_op_init(&ops[1], "/m", 1);
    SAME(ZOK, zoo_multi(handle, 3, ops, results));
    SAME(ZNONODE, zoo_exists(handle, "/m", 0, NULL));
}

static void watches(zhandle_t *handle, zhandle_t *other) {
    struct seen exists, data, children;
    struct String_vector names;
    char buffer[8];
    int length = sizeof buffer;
    seen_init(&exists), seen_init(&data), seen_init(&children);
    SAME(ZNONODE, zoo_wexists(handle, "/w", on_event, &exists, NULL));
    make(other, "/w", "");
    expect_event(&exists, ZOO_CREATED_EVENT, "/w", __LINE__);
    SAME(ZOK, zoo_wget(handle, "/w", on_event, &data, buffer, &length, NULL));
    SAME(ZOK, zoo_wget_children(handle, "/w", on_event, &children, &names));
    SAME(0, names.count);
    SAME(ZOK, zoo_set(other, "/w", "x", 1, -1));
    expect_event(&data, ZOO_CHANGED_EVENT, "/w", __LINE__);
    make(other, "/w/c", "");
    expect_event(&children, ZOO_CHILD_EVENT, "/w", __LINE__);
    SAME(ZOK, zoo_wexists(handle, "/w/c", on_event, &exists, NULL));
    SAME(ZOK, zoo_delete(other, "/w/c", -1));
    expect_event(&exists, ZOO_DELETED_EVENT, "/w/c", __LINE__);
    SAME(ZOK, zoo_wexists(handle, "/w", on_event, &exists, NULL));
    SAME(ZOK, zoo_remove_watches(handle, "/w", ZWATCHTYPE_DATA, on_event, &exists, 0));
    SAME(ZNOWATCHER, zoo_remove_watches(handle, "/w", ZWATCHTYPE_DATA, on_event, &exists, 0));
    SAME(ZOK, zoo_delete(other, "/w", -1));
}

/* Checks that the session, its ephemeral znode and its watches outlive the connection. */
static void reconnect(zhandle_t *handle, struct seen *seen, zhandle_t *other) {
    struct seen kept, missed;
    struct Stat stat;
    int64_t session = zoo_client_id(handle)->client_id;
    seen_init(&kept), seen_init(&missed);
    make(other, "/kept", "");
    make(other, "/missed", "");
    SAME(ZOK, zoo_create(handle, "/mine", "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0));
    SAME(ZOK, zoo_wexists(handle, "/kept", on_event, &kept, NULL));
    SAME(ZOK, zoo_wexists(handle, "/missed", on_event, &missed, NULL));
    int before = seen->connected;
    ask("cut");
    wait_until(seen, &seen->disconnected, 1, __LINE__);
    SAME(ZOK, zoo_set(other, "/missed", "x", 1, -1));
    ask("heal");
    wait_until(seen, &seen->connected, before + 1, __LINE__);
    SAME(session, zoo_client_id(handle)->client_id);
    expect_event(&missed, ZOO_CHANGED_EVENT, "/missed", __LINE__);
    SAME(ZOK, zoo_exists(handle, "/mine", 0, &stat));
    SAME(session, stat.ephemeralOwner);
    SAME(0, kept.type);
    SAME(ZOK, zoo_set(other, "/kept", "x", 1, -1));
    expect_event(&kept, ZOO_CHANGED_EVENT, "/kept", __LINE__);
}

/* Opens a session, and ends the process without closing the session. Runs in a child process that is forked before the
 * parent has threads. The parent then calls take_over. */
static void leave_a_session(const char *address, int to) {
    struct seen seen;
    zhandle_t *handle = open_session(address, &seen, NULL);
    SAME(ZOK, zoo_create(handle, "/left", "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0));
    SAME(sizeof(clientid_t), write(to, zoo_client_id(handle), sizeof(clientid_t)));
    _exit(0);
}

/* Attaches to the session of the child process, and closes the session. */
static void take_over(const char *address, const clientid_t *id, zhandle_t *other) {
    struct seen seen;
    struct Stat stat;
    zhandle_t *handle = open_session(address, &seen, id);
    SAME(id->client_id, zoo_client_id(handle)->client_id);
    SAME(ZOK, zoo_exists(handle, "/left", 0, &stat));
    SAME(id->client_id, stat.ephemeralOwner);
    SAME(ZOK, zookeeper_close(handle));
    SAME(ZNONODE, zoo_exists(other, "/left", 0, NULL));
}

enum { LOCKERS = 4, ROUNDS = 20 };
static int inside, visits;

/* Acquires and releases a lock by ZooKeeper's recipe, which Debian's package for C does not contain. */
static void *lock_and_unlock(void *address) {
    struct seen seen, gone;
    zhandle_t *handle = open_session(address, &seen, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        char mine[64];
        SAME(ZOK, zoo_create(handle, "/lock/n-", "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE, mine,
                             sizeof mine));
        for (;;) {
            struct String_vector names;
            char before[80] = "";
            SAME(ZOK, zoo_get_children(handle, "/lock", 0, &names));
            for (int i = 0; i < names.count; i++) {
                char path[80];
                snprintf(path, sizeof path, "/lock/%s", names.data[i]);
                if (strcmp(path, mine) < 0 && strcmp(path, before) > 0) strcpy(before, path);
            }
            deallocate_String_vector(&names);
            if (!*before) break;
            seen_init(&gone);
            int found = zoo_wexists(handle, before, on_event, &gone, NULL);
            if (found == ZNONODE) {
                /* The watch would stay set on a path that never exists again. */
                SAME(ZOK, zoo_remove_watches(handle, before, ZWATCHTYPE_DATA, on_event, &gone, 0));
                continue;
            }
            SAME(ZOK, found);
            expect_event(&gone, ZOO_DELETED_EVENT, before, __LINE__);
        }
        SAME(1, __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST));
        __atomic_add_fetch(&visits, 1, __ATOMIC_SEQ_CST);
        usleep(1000);
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        SAME(ZOK, zoo_delete(handle, mine, 0));
    }
    SAME(ZOK, zookeeper_close(handle));
    return NULL;
}

static void lock(char *address, zhandle_t *handle) {
    pthread_t lockers[LOCKERS];
    make(handle, "/lock", "");
    for (int i = 0; i < LOCKERS; i++) SAME(0, pthread_create(&lockers[i], NULL, lock_and_unlock, address));
    for (int i = 0; i < LOCKERS; i++) SAME(0, pthread_join(lockers[i], NULL));
    SAME(LOCKERS * ROUNDS, visits);
}

int main(int count, char **arguments) {
    SAME(3, count);
    char *direct = arguments[1], *proxied = arguments[2];
    struct seen seen, other_seen;
    clientid_t left;
    int ends[2], status;
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    SAME(0, pipe(ends));
    pid_t child = fork();
    if (!child) leave_a_session(direct, ends[1]);
    SAME(sizeof left, read(ends[0], &left, sizeof left));
    SAME(child, waitpid(child, &status, 0));
    SAME(0, status);

    zhandle_t *handle = open_session(proxied, &seen, NULL);
    zhandle_t *other = open_session(direct, &other_seen, NULL);
    take_over(direct, &left, other);
    nodes(handle);
    multi(handle);
    watches(handle, other);
    reconnect(handle, &seen, other);
    lock(direct, other);
    SAME(ZOK, zookeeper_close(handle));
    SAME(ZNONODE, zoo_exists(other, "/mine", 0, NULL));
    SAME(ZOK, zookeeper_close(other));
    puts("ok");
    return 0;
}
