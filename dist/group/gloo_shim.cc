// gloo_shim.cc: wraps Gloo in the C functions of gloo_shim.h; the only C++ in Remat. It adds only two things to Gloo:
// sums in plain loops with a fixed order of operands, and access to Remat's store.
#include "dist/group/gloo_shim.h"

#include <cerrno>
#include <csignal>
#include <ctime>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

namespace {

class Store : public gloo::rendezvous::Store {
  public:
    explicit Store(const rm_gloo_store &functions) : functions_(functions) {}

    void set(const std::string &key, const std::vector<char> &data) override {
        if (!functions_.set(functions_.context, key.c_str(), data.data(), static_cast<uint32_t>(data.size())))
            throw std::runtime_error("the store refused to set " + key);
    }
    std::vector<char> get(const std::string &key) override {
        std::vector<char> data(1 << 20);
        uint32_t bytes = 0;
        if (!functions_.get(functions_.context, key.c_str(), data.data(), static_cast<uint32_t>(data.size()), &bytes))
            throw std::runtime_error("no rank has set " + key + " in the store");
        data.resize(bytes);
        return data;
    }
    void wait(const std::vector<std::string> &keys) override {
        for (const auto &key : keys) get(key);
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override { wait(keys); }

  private:
    rm_gloo_store functions_;
};

template <typename T> void add(void *out, const void *a, const void *b, size_t count) {
    T *sum = static_cast<T *>(out);
    const T *x = static_cast<const T *>(a), *y = static_cast<const T *>(b);
    for (size_t i = 0; i < count; i++) sum[i] = static_cast<T>(x[i] + y[i]);
}

void larger(void *out, const void *a, const void *b, size_t count) {
    uint64_t *most = static_cast<uint64_t *>(out);
    const uint64_t *x = static_cast<const uint64_t *>(a), *y = static_cast<const uint64_t *>(b);
    for (size_t i = 0; i < count; i++) most[i] = x[i] > y[i] ? x[i] : y[i];
}

// Gloo writes to connections whose other end may just have died, without suppressing the signal. While a Quiet exists,
// SIGPIPE is blocked in this thread and in threads that it starts, so that the write fails and Gloo reports it. The
// program's own handling of the signal does not change.
class Quiet {
  public:
    Quiet() {
        sigset_t pending;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        sigpending(&pending);
        had_one_ = sigismember(&pending, SIGPIPE) == 1;
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~Quiet() {
        const timespec at_once = {};
        while (!had_one_ && sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {}
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    Quiet(const Quiet &) = delete;
    Quiet &operator=(const Quiet &) = delete;

  private:
    sigset_t pipe_, before_;
    bool had_one_;
};

template <typename Function> bool guarded(char *why, Function function) {
    Quiet quiet;
    try {
        function();
        return true;
    } catch (const std::exception &e) { std::snprintf(why, RM_GLOO_WHY, "Gloo says: %.350s", e.what()); } catch (...) {
        std::snprintf(why, RM_GLOO_WHY, "Gloo failed without a reason");
    }
    return false;
}

} // namespace

// A message that the other rank may not have asked for yet.
struct Message {
    std::vector<char> data;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

// Gloo does not tell which sockets are its own.
struct Socket {
    int fd;
    ino_t inode;
};

struct rm_gloo {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::vector<Socket> sockets; // of the connections to the other ranks
    uint32_t tag = 0;
    std::map<int, std::deque<Message>> sent; // by rank
};

static const uint64_t MESSAGES = UINT64_C(0xFF) << 56; // slot; Gloo's own collectives use others

#define NUMBER_TEXT(number) #number
#define TEXT(macro) NUMBER_TEXT(macro)

extern "C" const char *rm_gloo_version(void) {
    return TEXT(GLOO_VERSION_MAJOR) "." TEXT(GLOO_VERSION_MINOR) "." TEXT(GLOO_VERSION_PATCH);
}

static bool is_connected(int fd) {
    sockaddr_storage peer;
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &length)) return false;
    return peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
}

// The connections that this process has, except `others`.
static std::vector<Socket> connections(const std::vector<Socket> &others) {
    std::vector<Socket> found;
    DIR *fds = opendir("/proc/self/fd");
    for (dirent *entry; fds && (entry = readdir(fds));) {
        struct stat info;
        Socket s = {std::atoi(entry->d_name), 0};
        if (*entry->d_name == '.' || fstat(s.fd, &info) || !S_ISSOCK(info.st_mode) || !is_connected(s.fd)) continue;
        s.inode = info.st_ino;
        bool other = false;
        for (const Socket &o : others) other |= o.inode == s.inode;
        if (!other) found.push_back(s);
    }
    if (fds) closedir(fds);
    return found;
}

extern "C" bool rm_gloo_open(const rm_gloo_config *config, rm_gloo **out, char *why) {
    auto made = std::make_unique<rm_gloo>();
    bool fine = guarded(why, [&] {
        gloo::transport::tcp::attr attr;
        if (config->interface)
            attr.iface = config->interface;
        else
            attr.hostname = config->address;
        auto device = gloo::transport::tcp::CreateDevice(attr);
        Store store(config->store);
        made->context = std::make_shared<gloo::rendezvous::Context>(config->rank, config->size);
        made->context->setTimeout(std::chrono::milliseconds(config->connect_ms));
        const std::vector<Socket> others = connections({});
        made->context->connectFullMesh(store, device);
        made->sockets = connections(others);
    });
    *out = fine ? made.release() : nullptr;
    return fine;
}

extern "C" bool rm_gloo_meet(rm_gloo *gloo, const rm_gloo_config *config, char *why) {
    return guarded(why, [&] {
        const auto &context = gloo->context;
        std::vector<int32_t> mine(static_cast<size_t>(context->size), context->rank), theirs(mine.size(), -1);
        gloo::AlltoallOptions options(context);
        options.setInput(mine.data(), mine.size());
        options.setOutput(theirs.data(), theirs.size());
        options.setTag(gloo->tag++);
        gloo::alltoall(options);
        for (size_t r = 0; r < theirs.size(); r++)
            if (theirs[r] != static_cast<int32_t>(r)) throw std::runtime_error("a rank other than the expected one answered");
        context->setTimeout(std::chrono::milliseconds(config->timeout_ms));
    });
}

extern "C" void rm_gloo_close(rm_gloo *gloo) {
    char why[RM_GLOO_WHY];
    (void)guarded(why, [&] {
        gloo->sent.clear();
        delete gloo;
    });
}

// closeConnections() does not wake a thread of this process that waits for another rank. The end of a connection does,
// as if the other process had ended.
extern "C" void rm_gloo_abort(rm_gloo *gloo) {
    for (const Socket &s : gloo->sockets) {
        struct stat now;
        if (!fstat(s.fd, &now) && now.st_ino == s.inode) (void)shutdown(s.fd, SHUT_RDWR);
    }
}

template <typename T>
static void all_reduce(rm_gloo *gloo, gloo::AllreduceOptions::Func function, void *data, size_t count) {
    gloo::AllreduceOptions options(gloo->context);
    options.setOutput(static_cast<T *>(data), count);
    options.setReduceFunction(function);
    options.setTag(gloo->tag++);
    gloo::allreduce(options);
}

extern "C" bool rm_gloo_all_reduce(rm_gloo *gloo, rm_gloo_sum sum, void *data, size_t count, char *why) {
    return guarded(why, [&] {
        if (sum == RM_GLOO_F32)
            all_reduce<float>(gloo, add<float>, data, count);
        else if (sum == RM_GLOO_F64)
            all_reduce<double>(gloo, add<double>, data, count);
        else if (sum == RM_GLOO_I32)
            all_reduce<uint32_t>(gloo, add<uint32_t>, data, count);
        else if (sum == RM_GLOO_U8)
            all_reduce<uint8_t>(gloo, add<uint8_t>, data, count);
        else
            all_reduce<uint64_t>(gloo, larger, data, count);
    });
}

extern "C" bool rm_gloo_broadcast(rm_gloo *gloo, void *data, size_t bytes, int root, char *why) {
    return guarded(why, [&] {
        gloo::BroadcastOptions options(gloo->context);
        options.setOutput(static_cast<char *>(data), bytes);
        options.setRoot(root);
        options.setTag(gloo->tag++);
        gloo::broadcast(options);
    });
}

extern "C" bool rm_gloo_send(rm_gloo *gloo, int to, const void *data, size_t bytes, size_t room, char *why) {
    return guarded(why, [&] {
        auto &sent = gloo->sent[to];
        size_t there = 0;
        for (const auto &message : sent) there += message.data.size();
        for (; !sent.empty() && there + bytes > room; sent.pop_front()) {
            if (!sent.front().buffer->waitSend()) throw std::runtime_error("a message was aborted");
            there -= sent.front().data.size();
        }
        const char *from = static_cast<const char *>(data);
        sent.push_back({std::vector<char>(from, from + bytes), nullptr});
        Message &message = sent.back();
        message.buffer = gloo->context->createUnboundBuffer(message.data.data(), bytes);
        message.buffer->send(to, MESSAGES);
    });
}

extern "C" bool rm_gloo_receive(rm_gloo *gloo, int from, void *data, size_t bytes, char *why) {
    return guarded(why, [&] {
        auto buffer = gloo->context->createUnboundBuffer(data, bytes);
        buffer->recv(from, MESSAGES);
        if (!buffer->waitRecv()) throw std::runtime_error("a message was aborted");
    });
}

extern "C" bool rm_gloo_exchange(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why) {
    return guarded(why, [&] {
        gloo::AlltoallOptions options(gloo->context);
        size_t all = bytes * static_cast<size_t>(gloo->context->size);
        options.setInput(const_cast<char *>(static_cast<const char *>(in)), all);
        options.setOutput(static_cast<char *>(out), all);
        options.setTag(gloo->tag++);
        gloo::alltoall(options);
    });
}

extern "C" bool rm_gloo_all_gather(rm_gloo *gloo, const void *in, void *out, size_t bytes, char *why) {
    return guarded(why, [&] {
        gloo::AllgatherOptions options(gloo->context);
        char *row = static_cast<char *>(out) + bytes * static_cast<size_t>(gloo->context->rank);
        if (in != row) options.setInput(const_cast<char *>(static_cast<const char *>(in)), bytes);
        options.setOutput(static_cast<char *>(out), bytes * static_cast<size_t>(gloo->context->size));
        options.setTag(gloo->tag++);
        gloo::allgather(options);
    });
}
