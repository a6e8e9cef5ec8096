/* An OpenAI-compatible server that streams precomputed chunks, for measuring clients: one thread, epoll, absolute times.
 *
 * stream_server PORT TTFT_MS ITL_MS [CUT_EVERY]: an answer has as many chunks as `max_tokens` (`max_completion_tokens`) asks for, the
 * first TTFT_MS after the request arrived, the others ITL_MS apart. When an answer ends, a line is written: nanoseconds of
 * CLOCK_MONOTONIC at which the request arrived and the first chunk was written, 0 without one, and the number of chunks. Without TLS
 * the kernel stamps the arrival (SO_TIMESTAMPNS), so that it does not matter how late this program reads.
 *
 * With CUT_EVERY connections are kept and answers are in chunked encoding, and every CUT_EVERY-th answer (0: none) is cut, in turn:
 * after half of its chunks the body ends as HTTP wants it, without finish_reason, usage and [DONE]; after three quarters the connection
 * ends inside the body; after a quarter it is reset. The line has a fourth column: 0 whole, 1 to 3 for these.
 *
 * With the environment variable STREAM_NOTES a line ends with the request's X-Request-Id and, for each chunk, the times just before and
 * just after its write, in nanoseconds after the arrival. Compiled with -DWITH_TLS and -lssl, STREAM_CERT is a file with certificate
 * and key for TLS; a write then includes the encryption.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
static SSL_CTX *context;
#endif

enum { MAX_REQUEST = 1 << 20, MAX_FDS = 1 << 16 };

typedef struct {
    char *buffer;
    size_t length;
    int64_t received, first;
    long tokens, sent;
    int fd, cut, is_text; /* is_text: of the older API, /v1/completions */
    char id[64];
    int64_t *notes; /* two for each chunk */
#ifdef WITH_TLS
    SSL *tls;
#endif
} Answer;

static Answer *answers[MAX_FDS];
static int heap[MAX_FDS], count; /* descriptors by the time of their next chunk */
static int64_t ttft, itl;
static int is_chunked;
static long cut_every, answered;
static volatile sig_atomic_t stopped;
static int has_notes;

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
static const char CHUNKED_HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char CHUNK[] =
    "data: {\"id\":\"chatcmpl-independent\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\","
    "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char TEXT_CHUNK[] =
    "data: {\"id\":\"cmpl-independent\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"m\","
    "\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"owned_by\":\"vllm\"}]}";

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static ssize_t put(int fd, const void *text, size_t size) {
#ifdef WITH_TLS
    if (answers[fd]->tls) return SSL_write(answers[fd]->tls, text, size);
#endif
    return write(fd, text, size);
}

static int64_t arrived; /* of what `get` returned last */

static ssize_t get(int fd, void *text, size_t size) {
    union {
        char bytes[256];
        struct cmsghdr align;
    } control;
    struct iovec piece = {.iov_base = text, .iov_len = size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    arrived = now();
#ifdef WITH_TLS
    if (answers[fd]->tls) {
        int got = SSL_read(answers[fd]->tls, text, size);
        if (got > 0) return got;
        errno = SSL_get_error(answers[fd]->tls, got) == SSL_ERROR_WANT_READ ? EAGAIN : EIO;
        return -1;
    }
#endif
    ssize_t got = recvmsg(fd, &message, 0);
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); got > 0 && part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp, wall;
            memcpy(&stamp, CMSG_DATA(part), sizeof stamp);
            do {
                arrived = now();
                clock_gettime(CLOCK_REALTIME, &wall);
            } while (now() - arrived > 5000);
            arrived -= (wall.tv_sec - stamp.tv_sec) * 1000000000LL + wall.tv_nsec - stamp.tv_nsec;
        }
    return got;
}

static int64_t due(int fd) { return answers[fd]->received + ttft + answers[fd]->sent * itl; }

static void swap(int a, int b) {
    int fd = heap[a];
    heap[a] = heap[b];
    heap[b] = fd;
}

static void sift_up(int at) {
    for (; at && due(heap[at]) < due(heap[(at - 1) / 2]); at = (at - 1) / 2) swap(at, (at - 1) / 2);
}

static void sift_down(int at) {
    for (int least = at;; at = least) {
        for (int child = 2 * at + 1; child <= 2 * at + 2; child++)
            if (child < count && due(heap[child]) < due(heap[least])) least = child;
        if (least == at) return;
        swap(at, least);
    }
}

static void remove_at(int at) {
    swap(at, --count);
    if (at < count) {
        sift_down(at);
        sift_up(at);
    }
}

static void end_answer(int fd) {
    Answer *answer = answers[fd];
    if (!answer->received) return;
    printf("%lld %lld %ld", (long long)answer->received, (long long)answer->first, answer->sent);
    if (is_chunked) printf(" %d", answer->cut);
    if (has_notes) printf(" %s", answer->id);
    for (long at = 0; has_notes && at < 2 * answer->sent; at++) printf(" %lld", (long long)(answer->notes[at] - answer->received));
    putchar('\n');
    for (int at = 0; at < count; at++)
        if (heap[at] == fd) {
            remove_at(at);
            break;
        }
    answer->received = answer->first = answer->sent = answer->length = 0;
}

static void end(int fd) {
    Answer *answer = answers[fd];
    end_answer(fd);
#ifdef WITH_TLS
    if (answer->tls) {
        SSL_shutdown(answer->tls);
        SSL_free(answer->tls);
    }
#endif
    close(fd);
    free(answer->notes);
    free(answer->buffer);
    free(answer);
    answers[fd] = NULL;
}

static ssize_t write_part(int fd, const char *text, size_t size) {
    char part[1024];
    if (!is_chunked) return put(fd, text, size);
    int length = snprintf(part, sizeof part, "%zx\r\n%.*s\r\n", size, (int)size, text);
    return put(fd, part, length);
}

static void cut(int fd) {
    struct linger reset = {.l_onoff = 1};
    if (answers[fd]->cut == 1) {
        if (write(fd, "0\r\n\r\n", 5) < 0) perror("write");
        end_answer(fd);
        return;
    }
    if (answers[fd]->cut == 3) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    end(fd);
}

static void write_due(int fd) {
    Answer *answer = answers[fd];
    char last[512];
    if (answer->cut && answer->sent >= answer->tokens * (long[]){0, 2, 3, 1}[answer->cut] / 4) {
        cut(fd);
        return;
    }
    if (answer->sent < answer->tokens) {
        answer->sent++;
        const char *chunk = answer->is_text ? TEXT_CHUNK : CHUNK;
        size_t length = (answer->is_text ? sizeof TEXT_CHUNK : sizeof CHUNK) - 1;
        int64_t at = now();
        if (write_part(fd, chunk, length) < 0) {
            end(fd);
            return;
        }
        if (!answer->first) answer->first = at;
        if (has_notes) answer->notes[2 * answer->sent - 2] = at, answer->notes[2 * answer->sent - 1] = now();
        sift_down(0);
        return;
    }
    int size = snprintf(last, sizeof last,
        "data: {\"id\":\"chatcmpl-independent\",\"model\":\"m\",\"choices\":[{\"index\":0,%s,\"finish_reason\":\"length\"}]}\n\n"
        "data: {\"id\":\"chatcmpl-independent\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":%ld,"
        "\"total_tokens\":%ld}}\n\ndata: [DONE]\n\n",
        answer->is_text ? "\"text\":\"\"" : "\"delta\":{}", answer->tokens, answer->tokens + 64);
    if (write_part(fd, last, size) < 0) perror("write");
    if (!is_chunked) {
        end(fd);
        return;
    }
    if (write(fd, "0\r\n\r\n", 5) < 0) perror("write");
    end_answer(fd);
}

static void respond(int fd, const char *status, const char *body) {
    char text[1024];
    int size = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status, strlen(body), body);
    if (put(fd, text, size) < 0) perror("write");
    end(fd);
}

static void read_request(int fd) {
    Answer *answer = answers[fd];
    ssize_t size = get(fd, answer->buffer + answer->length, MAX_REQUEST - 1 - answer->length);
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
        end(fd);
        return;
    }
    answer->length += size;
    answer->buffer[answer->length] = 0;
    char *body = strstr(answer->buffer, "\r\n\r\n");
    if (!body || answer->received) return;
    if (!strncmp(answer->buffer, "GET ", 4)) {
        int is_models = strstr(answer->buffer, "/models ") != NULL, is_health = is_chunked && strstr(answer->buffer, "/health ") != NULL;
        respond(fd, is_models || is_health ? "200 OK" : "404 Not Found", is_models ? MODELS : "{}");
        return;
    }
    char *field = strcasestr(answer->buffer, "\r\ncontent-length:");
    if (!field || answer->length < (size_t)(body + 4 - answer->buffer) + strtoul(field + 17, NULL, 10)) return;
    char *tokens = strstr(body, "\"max_tokens\":");
    char *completion = strstr(body, "\"max_completion_tokens\":");
    answer->tokens = completion ? strtol(completion + 24, NULL, 10) : tokens ? strtol(tokens + 13, NULL, 10) : 16;
    answer->received = arrived;
    answer->is_text = strncmp(answer->buffer, "POST /v1/completions", 20) == 0;
    answered++;
    char *id = strcasestr(answer->buffer, "\r\nx-request-id:");
    if (!id || sscanf(id + 15, " %63[^\r\n]", answer->id) != 1) strcpy(answer->id, "-");
    if (has_notes) answer->notes = realloc(answer->notes, 2 * answer->tokens * sizeof(int64_t));
    answer->cut = cut_every && answered % cut_every == 0 ? 1 + answered / cut_every % 3 : 0;
    const char *head = is_chunked ? CHUNKED_HEAD : HEAD;
    if (put(fd, head, strlen(head)) < 0) perror("write");
    heap[count++] = fd;
    sift_up(count - 1);
}

static void stop(int number) { stopped = number; }

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5) return 2;
    ttft = atof(argv[2]) * 1e6, itl = atof(argv[3]) * 1e6;
    if (argc == 5) is_chunked = 1, cut_every = atol(argv[4]);
    has_notes = getenv("STREAM_NOTES") != NULL;
#ifdef WITH_TLS
    const char *cert = getenv("STREAM_CERT");
    context = SSL_CTX_new(TLS_server_method());
    if (cert && (SSL_CTX_use_certificate_chain_file(context, cert) != 1 || SSL_CTX_use_PrivateKey_file(context, cert, SSL_FILETYPE_PEM) != 1))
        return 1;
#endif
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1, poll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on); /* so has each accepted socket */
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    while (!stopped) {
        while (count && due(heap[0]) <= now()) write_due(heap[0]);
        int64_t wait = count ? due(heap[0]) - now() : 100000000;
        struct timespec timeout = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int ready = epoll_pwait2(poll, events, 256, &timeout, NULL);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                if (answers[fd]) read_request(fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (fd >= MAX_FDS) {
                    close(fd);
                    continue;
                }
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                answers[fd] = calloc(1, sizeof(Answer));
                answers[fd]->buffer = malloc(MAX_REQUEST);
#ifdef WITH_TLS
                if (cert) {
                    answers[fd]->tls = SSL_new(context);
                    SSL_set_fd(answers[fd]->tls, fd);
                    SSL_set_accept_state(answers[fd]->tls);
                }
#endif
                event.data.fd = fd;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
            }
        }
    }
    return 0; /* writes what stdio holds */
}
