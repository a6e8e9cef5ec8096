/* LLM serving engines at the level of scheduler steps: continuous batching on one or more workers, with a front and a balancer.
 *
 * A request passes: arrival, front (serial, optional), balancer, waiting heap of a worker, running list, end. A group of workers
 * steps together (data-parallel ranks in lock step) or each worker is a group of its own. At the start of a step each worker plans
 * tokens per sequence (`step`), at its end the tokens are delivered. All times are in seconds, all lengths in tokens.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The same fields in the same order as `SecondStructure` in structure.py. */
typedef struct {
    long workers, max_workers, prefill_workers, balance, lockstep;
    double balance_stale_s, scale_period_s, scale_up, scale_down, scale_start_s;
    double front_s, front_token_s, front_output_s, transfer_s, transfer_token_s;
    long first_after_transfer, scheduler, order;
    double aging_tokens_per_s, priority_share;
    long max_batch, max_waiting, step_tokens, chunk_tokens;
    double prefill_ratio;
    long prefill_wait_steps, kv_tokens, kv_block;
    double kv_reserve, kv_watermark;
    long prefix_block;
    double base_s, sequence_s, context_s, prompt_s, attention_s;
    long roofline, padding;
    double noise, host_s;
    long overlap, draft_tokens, draft_max_batch;
    double draft_s, acceptance, acceptance_spread;
    double stall_every_s, stall_s, neighbour, neighbour_tau_s, speed;
    long page_front, counters_at_end;
    double target_step_s, request_s, clock_fall, clock_tau_s;
    long gc_tokens;
    double gc_s, admit_high, admit_low;
    long front_connections;
    double acceptance_fall;
    long slow_workers;
    double slow_factor;
    long adapters, adapter_slots;
    double adapter_s;
    long static_batch;
} Structure;

enum { ROUND_ROBIN, LEAST_BUSY, RANDOM_WORKER, PREFIX_AFFINITY };
enum { MIXED, SEPARATE };
enum { FCFS, SHORTEST_PROMPT, PRIORITY, LAST_FIRST };
enum { NO_PADDING, POWER_OF_TWO, LONGEST };
enum { IN_FLIGHT, COMPLETE, CANCELLED, FAILED };
enum { OFF, STARTING, LIVE, DRAINING };
enum { AT_FRONT, IN_HEAP, RUNNING, IN_TRANSFER };
enum { TTFT, QUEUE_TIME, E2E, PROMPT, OUTPUT, TRANSFER, ITL, TPOT, HISTOGRAMS };

typedef struct {
    long number;
    double arrival, ready, scheduled, key, delivered;
    int prompt, output;
    int computed, target; /* tokens in the KV cache, and tokens to have there before the next token is generated */
    int generated, kv, pinned, step, id_count, place, worker;
    char is_cancelled, is_ended, has_transferred, keep_tokens, is_connected;
    double acceptance;
    int64_t *ids;
} Request;

typedef struct { double *at; int *slot; long head, size, room; } Queue;
typedef struct { int64_t id; int references, older, newer, next; } Block;

typedef struct {
    int state, group;
    double live_at, stall_at, neighbour_at, neighbour_x;
    int *running, *heap;
    long running_count, heap_size, heap_room, waiting_count, busy_seen;
    long kv_used;               /* private tokens and pinned blocks */
    Block *blocks;              /* of the prefix cache */
    int *buckets, free_block, newest, oldest;
    long bucket_mask, evictable; /* tokens in blocks without references */
    long steps_since_prefill, planned;
    double heat, heat_at;       /* share of the recent time in steps, and until when it is known */
    long garbage;               /* tokens since the last collection */
    int is_closed, *adapters, adapter_loads; /* adapters: the latest used first, -1: free */
} Worker;

typedef struct { int first, count, is_busy; double begin, end; } Group;
typedef struct { double at; int next; } TokenTime;
typedef struct { const double *bounds; long size; double *counts; double sum; } Histogram;

typedef struct {
    Structure s;
    double now, front_free, link_free, balance_at, scale_at;
    uint64_t random[4], seed;
    double spare;
    int has_spare, turn, decode_turn;
    Request *slots;
    int *free_slots;
    long slot_count, free_count;
    Queue arrivals, ready, transfers, held;
    long connected;
    Worker *workers;
    Group *groups;
    int worker_count, group_count;
    long count, room; /* of results, by number */
    double *first, *end;
    int *tokens, *slot_of, *token_head, *token_last;
    char *status;
    TokenTime *token_times;
    long token_count, token_room;
    double preemptions, prompt_total, generation_total, finished, cache_queries, cache_hits, busy_s, computed_total;
    Histogram histograms[HISTOGRAMS];
    double cutoff; /* overlap: requests that became ready later are not admitted in this step */
} Engine;

static long least(long a, long b) { return a < b ? a : b; }

/* Random numbers: xoshiro256++ (Blackman and Vigna), seeded by splitmix64. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform_of(uint64_t x) { return ((x >> 11) + 0.5) / 9007199254740992.0; }

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static double uniform(Engine *e) {
    uint64_t *r = e->random, result = rotate(r[0] + r[3], 23) + r[0], t = r[1] << 17;
    r[2] ^= r[0]; r[3] ^= r[1]; r[1] ^= r[2]; r[0] ^= r[3]; r[2] ^= t; r[3] = rotate(r[3], 45);
    return uniform_of(result);
}

static double normal(Engine *e) { /* polar method */
    if (e->has_spare) { e->has_spare = 0; return e->spare; }
    double u, v, q;
    do { u = 2 * uniform(e) - 1; v = 2 * uniform(e) - 1; q = u * u + v * v; } while (q >= 1 || q == 0);
    q = sqrt(-2 * log(q) / q);
    e->spare = v * q; e->has_spare = 1;
    return u * q;
}

/* Queues in order of time. */
static void enqueue(Queue *q, double at, int slot) {
    if (q->size == q->room) {
        long room = q->room ? 2 * q->room : 64;
        double *ats = malloc(room * sizeof *ats); int *slots = malloc(room * sizeof *slots);
        for (long i = 0; i < q->size; i++) { ats[i] = q->at[(q->head + i) % q->room]; slots[i] = q->slot[(q->head + i) % q->room]; }
        free(q->at); free(q->slot);
        q->at = ats; q->slot = slots; q->head = 0; q->room = room;
    }
    long tail = (q->head + q->size++) % q->room;
    q->at[tail] = at; q->slot[tail] = slot;
}

static int dequeue(Queue *q) {
    int slot = q->slot[q->head];
    q->head = (q->head + 1) % q->room; q->size--;
    return slot;
}

static double next_at(const Queue *q) { return q->size ? q->at[q->head] : INFINITY; }

/* Heap of waiting requests by key, then number. */
static int comes_before(Engine *e, int a, int b) {
    Request *x = e->slots + a, *y = e->slots + b;
    return x->key < y->key || (x->key == y->key && x->number < y->number);
}

static void push(Engine *e, Worker *w, int slot) {
    if (w->heap_size == w->heap_room) w->heap = realloc(w->heap, (w->heap_room = 2 * w->heap_room + 64) * sizeof(int));
    long i = w->heap_size++;
    for (; i && comes_before(e, slot, w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = slot;
    e->slots[slot].place = IN_HEAP;
    w->waiting_count++;
}

static int pop(Engine *e, Worker *w) {
    int top = w->heap[0], last = w->heap[--w->heap_size];
    long i = 0, child;
    while ((child = 2 * i + 1) < w->heap_size) {
        if (child + 1 < w->heap_size && comes_before(e, w->heap[child + 1], w->heap[child])) child++;
        if (!comes_before(e, w->heap[child], last)) break;
        w->heap[i] = w->heap[child]; i = child;
    }
    w->heap[i] = last;
    return top;
}

static void release_slot(Engine *e, int slot) {
    free(e->slots[slot].ids);
    e->slots[slot].ids = NULL;
    e->free_slots[e->free_count++] = slot;
}

static int peek(Engine *e, Worker *w) { /* first waiting request, or -1 */
    while (w->heap_size && e->slots[w->heap[0]].is_cancelled) release_slot(e, pop(e, w));
    return w->heap_size && e->slots[w->heap[0]].ready <= e->cutoff ? w->heap[0] : -1;
}

/* KV cache with shared prefix blocks: blocks with references are pinned, the others are evicted from the oldest on. */
static int find_block(Worker *w, int64_t id) {
    int b = w->buckets[mix(id) & w->bucket_mask];
    while (b >= 0 && w->blocks[b].id != id) b = w->blocks[b].next;
    return b;
}

static void unlink_block(Worker *w, int b) {
    Block *k = w->blocks + b;
    if (k->older >= 0) w->blocks[k->older].newer = k->newer; else w->oldest = k->newer;
    if (k->newer >= 0) w->blocks[k->newer].older = k->older; else w->newest = k->older;
}

static void pin(Engine *e, Worker *w, int b) {
    if (w->blocks[b].references++ == 0) {
        unlink_block(w, b);
        w->evictable -= e->s.prefix_block; w->kv_used += e->s.prefix_block;
    }
}

static void unpin(Engine *e, Worker *w, int b) {
    Block *k = w->blocks + b;
    if (--k->references) return;
    k->older = w->newest; k->newer = -1;
    if (w->newest >= 0) w->blocks[w->newest].newer = b; else w->oldest = b;
    w->newest = b;
    w->evictable += e->s.prefix_block; w->kv_used -= e->s.prefix_block;
}

static void evict(Engine *e, Worker *w) {
    int b = w->oldest, *link = w->buckets + (mix(w->blocks[b].id) & w->bucket_mask);
    unlink_block(w, b);
    while (*link != b) link = &w->blocks[*link].next;
    *link = w->blocks[b].next;
    w->blocks[b].next = w->free_block; w->free_block = b;
    w->evictable -= e->s.prefix_block;
}

static long private_tokens(Engine *e, Request *r, long tokens) {
    tokens -= r->pinned * e->s.prefix_block;
    return tokens <= 0 ? 0 : (tokens + e->s.kv_block - 1) / e->s.kv_block * e->s.kv_block;
}

static int grow(Engine *e, Worker *w, Request *r, long tokens, double spare) { /* 0: no room for `tokens` of r and `spare` more */
    long more = private_tokens(e, r, tokens) - r->kv;
    if (more <= 0 && spare <= 0) return 1;
    if (w->kv_used + more + spare > e->s.kv_tokens) return 0;
    while (w->kv_used + w->evictable + more > e->s.kv_tokens) evict(e, w);
    if (more > 0) { w->kv_used += more; r->kv += more; }
    return 1;
}

static void pin_hits(Engine *e, Worker *w, Request *r) {
    int b;
    while (r->pinned < r->id_count && (b = find_block(w, r->ids[r->pinned])) >= 0) { pin(e, w, b); r->pinned++; }
}

static void share_prefix(Engine *e, Worker *w, Request *r) { /* its computed prompt becomes blocks of the cache */
    while (r->pinned < r->id_count) {
        int64_t id = r->ids[r->pinned];
        int b = find_block(w, id);
        if (b >= 0) pin(e, w, b);
        else {
            if ((b = w->free_block) < 0) break;
            w->free_block = w->blocks[b].next;
            int *bucket = w->buckets + (mix(id) & w->bucket_mask);
            w->blocks[b] = (Block){id, 1, -1, -1, *bucket};
            *bucket = b;
            w->kv_used += e->s.prefix_block;
        }
        r->pinned++;
        long left = private_tokens(e, r, r->computed);
        w->kv_used += left - r->kv; r->kv = left;
    }
    while (w->kv_used + w->evictable > e->s.kv_tokens && w->oldest >= 0) evict(e, w);
}

static void release_kv(Engine *e, Worker *w, Request *r) {
    w->kv_used -= r->kv; r->kv = 0;
    while (r->pinned) unpin(e, w, find_block(w, r->ids[--r->pinned]));
}

/* Results. */
static void observe(Histogram *h, double value) {
    long i = 0;
    while (i < h->size && value > h->bounds[i]) i++;
    h->counts[i]++; h->sum += value;
}

static void end_request(Engine *e, Request *r, double at, int status) {
    e->end[r->number] = at;
    e->tokens[r->number] = r->generated;
    e->status[r->number] = status;
    e->slot_of[r->number] = -1;
    if (r->is_connected) { r->is_connected = 0; e->connected--; }
    if (status != COMPLETE) return;
    double seen = e->s.page_front ? r->arrival : r->ready;
    e->finished++;
    if (e->s.counters_at_end) { e->prompt_total += r->prompt; e->generation_total += r->output; }
    observe(e->histograms + E2E, at - seen);
    observe(e->histograms + PROMPT, r->prompt);
    observe(e->histograms + OUTPUT, r->output);
    if (r->output > 1) observe(e->histograms + TPOT, (at - e->first[r->number]) / (r->output - 1));
}

static void deliver(Engine *e, Request *r, long tokens, double at) {
    if (isnan(e->first[r->number]) && !(e->s.first_after_transfer && e->s.prefill_workers && !r->has_transferred && r->output > 1)) {
        e->first[r->number] = at;
        observe(e->histograms + TTFT, at - (e->s.page_front ? r->arrival : r->ready));
    }
    if (r->generated) observe(e->histograms + ITL, at - r->delivered);
    r->delivered = at;
    if (!r->generated && !e->s.counters_at_end) e->prompt_total += r->prompt;
    r->generated += tokens;
    if (!e->s.counters_at_end) e->generation_total += tokens;
    for (long i = 0; r->keep_tokens && i < tokens; i++) {
        if (e->token_count == e->token_room)
            e->token_times = realloc(e->token_times, (e->token_room = 2 * e->token_room + 1024) * sizeof(TokenTime));
        e->token_times[e->token_count] = (TokenTime){at, -1};
        if (e->token_head[r->number] < 0) e->token_head[r->number] = e->token_count;
        else e->token_times[e->token_last[r->number]].next = e->token_count;
        e->token_last[r->number] = e->token_count++;
    }
}

/* Planning of a step. */
static int is_prefilling(const Request *r) { return r->computed < r->target; }

static void preempt_last(Engine *e, Worker *w) { /* its tokens are computed again, as in vLLM V1 */
    int slot = w->running[--w->running_count];
    Request *r = e->slots + slot;
    release_kv(e, w, r);
    if (r->is_cancelled || r->is_ended) { release_slot(e, slot); return; }
    r->computed = 0; r->step = 0;
    r->target = r->prompt + r->generated;
    e->preemptions++;
    push(e, w, slot);
}

static int grow_or_preempt(Engine *e, Worker *w, long i, long tokens) { /* 0: the sequence itself was preempted */
    while (!grow(e, w, e->slots + w->running[i], tokens, 0)) {
        preempt_last(e, w);
        if (i >= w->running_count) return 0;
    }
    return 1;
}

static double reserved_for_outputs(Engine *e, Worker *w) {
    double tokens = 0;
    for (long i = 0; e->s.kv_reserve > 0 && i < w->running_count; i++) {
        Request *r = e->slots + w->running[i];
        long missing = r->prompt + r->output - r->computed;
        if (!r->is_ended) tokens += is_prefilling(r) ? (r->target - r->computed) + e->s.kv_reserve * (r->prompt + r->output - r->target)
                                                     : e->s.kv_reserve * missing;
    }
    return tokens;
}

static int is_closed(Engine *e, Worker *w) { /* admission stops at a high watermark of memory and resumes at a low one */
    const Structure *s = &e->s;
    if (s->admit_high <= 0) return 0;
    double usage = (double)w->kv_used / s->kv_tokens;
    if (!w->running_count || usage < s->admit_low) w->is_closed = 0;
    else if (usage > s->admit_high) w->is_closed = 1;
    return w->is_closed;
}

static void load_adapter(Engine *e, Worker *w, Request *r) { /* least recently used is replaced */
    double u = uniform_of(mix(e->seed ^ mix(r->number + 77)));
    int adapter = u * u * e->s.adapters, i = 0;
    while (i < e->s.adapter_slots - 1 && w->adapters[i] != adapter) i++;
    w->adapter_loads += w->adapters[i] != adapter;
    for (; i; i--) w->adapters[i] = w->adapters[i - 1];
    w->adapters[0] = adapter;
}

static void admit(Engine *e, Worker *w, long budget, int whole_prompts) {
    const Structure *s = &e->s;
    if (s->static_batch && w->running_count) return;
    double reserved = reserved_for_outputs(e, w);
    int slot, is_first = 1;
    while (w->running_count < s->max_batch && budget > 0 && !is_closed(e, w) && (slot = peek(e, w)) >= 0) {
        Request *r = e->slots + slot;
        int is_transferred = !is_prefilling(r), hits = 0;
        if (!is_transferred) {
            pin_hits(e, w, r);
            hits = least(r->pinned * s->prefix_block, r->target - 1);
        }
        long rest = r->target - hits, n = is_transferred ? 0 : least(rest, s->chunk_tokens);
        if (!whole_prompts) n = least(n, budget);
        double later = s->kv_reserve * (r->prompt + r->output - r->target) + (s->kv_reserve > 0 ? rest - n : 0);
        double spare = reserved + later + (w->running_count ? s->kv_watermark * s->kv_tokens : 0);
        long kv = is_transferred ? r->computed + 1 : hits + n;
        if ((whole_prompts && !is_first && n > budget) || !grow(e, w, r, kv, spare)) {
            release_kv(e, w, r);
            break;
        }
        pop(e, w);
        w->waiting_count--;
        if (!is_transferred) {
            e->cache_queries += s->prefix_block ? r->prompt : 0;
            e->cache_hits += hits;
            r->computed = hits;
        }
        if (isnan(r->scheduled)) {
            r->scheduled = e->now;
            observe(e->histograms + QUEUE_TIME, e->now - (s->page_front ? r->arrival : r->ready));
        }
        if (s->adapters) load_adapter(e, w, r);
        r->step = is_transferred ? 1 : n;
        r->place = RUNNING;
        w->running[w->running_count++] = slot;
        w->planned += r->step;
        reserved += later;
        budget -= r->step;
        is_first = 0;
    }
}

static long draft_length(Engine *e, Worker *w) { return w->running_count <= e->s.draft_max_batch ? e->s.draft_tokens : 0; }

static long adapted_budget(Engine *e, Worker *w, long drafts) { /* tokens so that the step takes its target, with 64 of prompts at least */
    const Structure *s = &e->s;
    double decodes = 0, context = 0;
    for (long i = 0; i < w->running_count; i++)
        if (!is_prefilling(e->slots + w->running[i])) { decodes++; context += e->slots[w->running[i]].computed; }
    double rest_s = s->target_step_s - s->base_s - s->sequence_s * decodes - s->context_s * context;
    return least(s->step_tokens, decodes * (1 + drafts) + fmax(64, rest_s / s->prompt_s));
}

static void plan_mixed(Engine *e, Worker *w) { /* decodes and chunks of prompts in one step: vLLM V1, llama.cpp */
    long budget = e->s.step_tokens, before = w->running_count, drafts = draft_length(e, w);
    if (e->s.target_step_s > 0) budget = adapted_budget(e, w, drafts);
    for (long i = 0; i < w->running_count; i++) {
        Request *r = e->slots + w->running[i];
        if (budget <= 0 || r->is_ended) continue;
        long n = is_prefilling(r) ? least(least(r->target - r->computed, budget), e->s.chunk_tokens) : 1 + drafts;
        if (!grow_or_preempt(e, w, i, r->computed + n)) break;
        r->step = n; w->planned += n; budget -= n;
    }
    if (w->running_count >= before) admit(e, w, budget, 0);
}

static void plan_separate(Engine *e, Worker *w) { /* steps of prompts only, which stall decodes: vLLM V0, SGLang, TGI */
    long decodes = 0, prefills = 0, budget = e->s.step_tokens;
    for (long i = 0; i < w->running_count; i++)
        if (!e->slots[w->running[i]].is_ended) { if (is_prefilling(e->slots + w->running[i])) prefills++; else decodes++; }
    if (!decodes || prefills || w->steps_since_prefill >= e->s.prefill_wait_steps || w->waiting_count >= e->s.prefill_ratio * decodes) {
        for (long i = 0; i < w->running_count && budget > 0; i++) {
            Request *r = e->slots + w->running[i];
            if (r->is_ended || !is_prefilling(r)) continue;
            long n = least(least(r->target - r->computed, budget), e->s.chunk_tokens);
            if (!grow_or_preempt(e, w, i, r->computed + n)) break;
            r->step = n; w->planned += n; budget -= n;
        }
        admit(e, w, budget, 1);
        if (w->planned) { w->steps_since_prefill = 0; return; }
    }
    w->steps_since_prefill++;
    long drafts = draft_length(e, w);
    for (long i = 0; i < w->running_count; i++) {
        Request *r = e->slots + w->running[i];
        if (r->is_ended || is_prefilling(r)) continue;
        if (!grow_or_preempt(e, w, i, r->computed + 1 + drafts)) break;
        r->step = 1 + drafts; w->planned += 1 + drafts;
    }
}

static void plan(Engine *e, Worker *w) {
    w->planned = 0;
    for (long i = 0; i < w->running_count; i++) e->slots[w->running[i]].step = 0;
    if (e->s.scheduler == MIXED) plan_mixed(e, w); else plan_separate(e, w);
}

/* Duration of a step. */
static double slowness(Engine *e, Worker *w) { /* noisy neighbour: log speed is an Ornstein-Uhlenbeck process */
    if (e->s.neighbour <= 0) return 1;
    double tick = e->s.neighbour_tau_s / 20, a = exp(-1.0 / 20);
    for (; w->neighbour_at <= e->now; w->neighbour_at += tick) w->neighbour_x = a * w->neighbour_x + sqrt(1 - a * a) * normal(e);
    return exp(e->s.neighbour * w->neighbour_x);
}

static double stalls(Engine *e, Worker *w, double duration) { /* the host stands still: from stall_at on, for stall_s */
    double total = 0, every = e->s.stall_every_s;
    if (every <= 0) return 0;
    while (w->stall_at < e->now + duration + total) {
        double rest = e->s.stall_s - fmax(0, e->now - w->stall_at);
        if (rest > 0) total += rest;
        w->stall_at += every * (0.8 + 0.4 * uniform(e));
    }
    return total;
}

static double power_of_two(double n) { double p = 1; while (p < n) p *= 2; return n > 0 ? p : 0; }

static double duration(Engine *e, Worker *w) {
    const Structure *s = &e->s;
    double sequences = 0, context = 0, prompt = 0, attention = 0, longest = 0, longest_context = 0;
    long prefills = 0, drafts = draft_length(e, w);
    if (!w->planned) return 0;
    for (long i = 0; i < w->running_count; i++) {
        Request *r = e->slots + w->running[i];
        if (is_prefilling(r) && r->step) {
            prefills++; prompt += r->step;
            attention += (double)r->step * (r->computed + 0.5 * r->step);
            if (r->step > longest) longest = r->step;
        } else if (r->step || r->is_ended) {
            sequences++; context += r->computed;
            if (r->computed > longest_context) longest_context = r->computed;
        }
    }
    if (s->padding == POWER_OF_TWO) { sequences = power_of_two(sequences); prompt = power_of_two(prompt); }
    if (s->padding == LONGEST) { prompt = prefills * longest; context = sequences * longest_context; }
    double memory = s->base_s + s->context_s * context;
    double compute = s->sequence_s * sequences * (1 + 0.25 * drafts) + s->prompt_s * prompt + s->attention_s * attention;
    double d = s->roofline ? fmax(memory, compute) : memory + compute;
    if (sequences > 0) d += s->draft_s * drafts;
    d += s->request_s * prefills + s->adapter_s * w->adapter_loads;
    w->adapter_loads = 0;
    if (w - e->workers < s->slow_workers) d *= s->slow_factor;
    if (s->clock_fall > 0) { /* the clock falls with the share of the time that the worker is busy */
        w->heat *= exp(-(e->now - w->heat_at) / s->clock_tau_s);
        d *= 1 + s->clock_fall * w->heat;
        w->heat = 1 - (1 - w->heat) * exp(-d / s->clock_tau_s);
        w->heat_at = e->now + d;
    }
    d *= s->speed * slowness(e, w) * (s->noise > 0 ? exp(s->noise * normal(e) - s->noise * s->noise / 2) : 1);
    d = s->overlap ? fmax(d, s->host_s) : d + s->host_s;
    if (s->gc_tokens && (w->garbage += w->planned) >= s->gc_tokens) { w->garbage = 0; d += s->gc_s * (0.7 + 0.6 * uniform(e)); }
    return d + stalls(e, w, d);
}

static void begin_step(Engine *e, int g, double scheduled_since) {
    Group *group = e->groups + g;
    double longest = 0;
    long planned = 0;
    for (int attempt = 0; attempt < 2 && !planned; attempt++) { /* a second time after preemption emptied the batch */
        e->cutoff = attempt || !e->s.overlap ? e->now : scheduled_since;
        for (int i = group->first; i < group->first + group->count; i++) {
            plan(e, e->workers + i);
            planned += e->workers[i].planned;
        }
    }
    group->is_busy = planned > 0;
    for (int i = group->first; i < group->first + group->count; i++) {
        Worker *w = e->workers + i;
        if (planned) longest = fmax(longest, duration(e, w));
        else while (w->running_count) preempt_last(e, w); /* only ended sequences of an overlapped step are left */
    }
    group->begin = e->now; group->end = e->now + longest;
    if (planned) e->busy_s += longest;
}

static long accepted(Engine *e, Request *r) { /* tokens of a verified draft */
    double share = (double)e->workers[r->worker].running_count / e->s.max_batch;
    double acceptance = r->acceptance * (1 - e->s.acceptance_fall * share);
    long n = 1;
    while (n < r->step && uniform(e) < acceptance) n++;
    return least(n, r->output - r->generated);
}

static void transfer(Engine *e, Worker *w, int slot) {
    Request *r = e->slots + slot;
    release_kv(e, w, r);
    r->has_transferred = 1;
    r->target = r->computed; r->place = IN_TRANSFER;
    e->link_free = fmax(e->link_free, e->now) + e->s.transfer_s + e->s.transfer_token_s * r->computed;
    observe(e->histograms + TRANSFER, e->link_free - e->now);
    enqueue(&e->transfers, e->link_free, slot);
}

static void end_worker_step(Engine *e, int index, double at) {
    Worker *w = e->workers + index;
    long remaining = 0;
    for (long i = 0; i < w->running_count; i++) {
        int slot = w->running[i];
        Request *r = e->slots + slot;
        if (r->is_cancelled || r->is_ended) { release_kv(e, w, r); release_slot(e, slot); continue; }
        if (r->step) {
            long n = 0;
            e->computed_total += r->step;
            if (!is_prefilling(r)) { n = accepted(e, r); r->computed += n; r->target = r->computed; }
            else if ((r->computed += r->step) == r->target) { n = 1; if (r->id_count) share_prefix(e, w, r); }
            if (n) deliver(e, r, n, at);
            if (n && r->generated >= r->output) {
                end_request(e, r, at, COMPLETE);
                if (!e->s.overlap) { release_kv(e, w, r); release_slot(e, slot); continue; }
                r->is_ended = 1; /* it is in the next step too, which was planned before this result */
            } else if (n && index < e->s.prefill_workers && !r->has_transferred) { transfer(e, w, slot); continue; }
        }
        w->running[remaining++] = slot;
    }
    w->running_count = remaining;
    if (w->state == DRAINING && !w->running_count && !w->waiting_count) w->state = OFF;
}

static void end_step(Engine *e, int g) {
    Group *group = e->groups + g;
    double at = e->now;
    if (e->s.front_output_s > 0) { /* the front sends the tokens of a step one after another */
        long outputs = 0;
        for (int i = group->first; i < group->first + group->count; i++) outputs += e->workers[i].running_count;
        at = e->front_free = fmax(e->front_free, at) + outputs * e->s.front_output_s;
    }
    for (int i = group->first; i < group->first + group->count; i++) end_worker_step(e, i, at);
    begin_step(e, g, group->begin);
}

/* Balancer and autoscaler. */
static long busy(const Worker *w) { return w->running_count + w->waiting_count; }

static int choose(Engine *e, Request *r, int from, int to, int *turn) {
    int routable = 0, chosen = from, position, steps;
    for (int i = from; i < to; i++) routable += e->workers[i].state == LIVE;
    if (e->s.balance == LEAST_BUSY) {
        if (e->now >= e->balance_at) {
            for (int i = 0; i < e->worker_count; i++) e->workers[i].busy_seen = busy(e->workers + i);
            e->balance_at = e->now + e->s.balance_stale_s;
        }
        long fewest = 1L << 60;
        (*turn)++;
        for (int i = 0; i < to - from; i++) {
            int k = from + (*turn + i) % (to - from);
            if (e->workers[k].state == LIVE && e->workers[k].busy_seen < fewest) { fewest = e->workers[k].busy_seen; chosen = k; }
        }
        return chosen;
    }
    if (e->s.balance == RANDOM_WORKER) position = uniform(e) * routable;
    else if (e->s.balance == PREFIX_AFFINITY && r->id_count) position = mix(r->ids[least(1, r->id_count - 1)]) % routable;
    else position = (*turn)++ % routable;
    for (chosen = from, steps = -1; chosen < to; chosen++)
        if (e->workers[chosen].state == LIVE && ++steps == position) break;
    return chosen;
}

static void route(Engine *e, int slot) {
    Request *r = e->slots + slot;
    const Structure *s = &e->s;
    if (r->is_cancelled) { release_slot(e, slot); return; }
    int split = s->prefill_workers, to = split && !r->has_transferred ? split : e->worker_count;
    int index = choose(e, r, split && r->has_transferred ? split : 0, to, r->has_transferred ? &e->decode_turn : &e->turn);
    Worker *w = e->workers + index;
    if (s->max_waiting && w->waiting_count >= s->max_waiting) { end_request(e, r, e->now, FAILED); release_slot(e, slot); return; }
    if (r->has_transferred && isnan(e->first[r->number])) {
        e->first[r->number] = e->now;
        if (r->keep_tokens) e->token_times[e->token_head[r->number]].at = e->now;
        observe(e->histograms + TTFT, e->now - (s->page_front ? r->arrival : r->ready));
    }
    r->worker = index;
    r->key = s->order == LAST_FIRST ? -(double)r->number
             : s->order == SHORTEST_PROMPT ? r->prompt + s->aging_tokens_per_s * r->ready
             : s->order == PRIORITY && uniform_of(mix(e->seed ^ mix(r->number + 7))) >= s->priority_share ? 1e15 + r->number : r->number;
    push(e, w, slot);
    if (!e->groups[w->group].is_busy) begin_step(e, w->group, e->now);
}

static void scale(Engine *e) {
    int live = 0, starting = 0, last = -1;
    double load = 0;
    for (int i = 0; i < e->worker_count; i++) {
        Worker *w = e->workers + i;
        if (w->state == STARTING && w->live_at <= e->now) w->state = LIVE;
        load += busy(w);
        if (w->state == LIVE) { live++; last = i; }
        starting += w->state == STARTING;
    }
    if (load > e->s.scale_up * (live + starting))
        for (int i = 0; i < e->worker_count; i++)
            if (e->workers[i].state == OFF) { e->workers[i].state = STARTING; e->workers[i].live_at = e->now + e->s.scale_start_s; break; }
    if (load < e->s.scale_down * live && live > e->s.workers && !starting) e->workers[last].state = busy(e->workers + last) ? DRAINING : OFF;
    e->scale_at += e->s.scale_period_s;
}

/* Interface. */
long structure_size(void) { return sizeof(Structure); }

Engine *engine_new(const Structure *s, uint64_t seed, const double **bounds, const long *sizes) {
    Engine *e = calloc(1, sizeof *e);
    e->s = *s; e->seed = mix(seed);
    for (int i = 0; i < 4; i++) e->random[i] = mix(e->seed + i);
    e->worker_count = s->max_workers > s->workers ? s->max_workers : s->workers;
    e->group_count = s->lockstep ? 1 : e->worker_count;
    e->workers = calloc(e->worker_count, sizeof(Worker));
    e->groups = calloc(e->group_count, sizeof(Group));
    e->scale_at = s->scale_period_s > 0 ? s->scale_period_s : INFINITY;
    for (int i = 0; i < e->worker_count; i++) {
        Worker *w = e->workers + i;
        w->state = i < s->workers ? LIVE : OFF;
        w->group = s->lockstep ? 0 : i;
        w->running = malloc((s->max_batch + 1) * sizeof(int));
        w->stall_at = s->stall_every_s * uniform(e);
        w->neighbour_x = normal(e);
        w->newest = w->oldest = w->free_block = -1;
        if (s->adapters) {
            w->adapters = malloc(s->adapter_slots * sizeof(int));
            for (int k = 0; k < s->adapter_slots; k++) w->adapters[k] = -1;
        }
        if (s->prefix_block) {
            long blocks = s->kv_tokens / s->prefix_block + 2, buckets = power_of_two(2 * blocks);
            w->blocks = calloc(blocks, sizeof(Block));
            w->buckets = malloc(buckets * sizeof(int));
            w->bucket_mask = buckets - 1;
            memset(w->buckets, -1, buckets * sizeof(int));
            for (int b = blocks - 1; b >= 0; b--) { w->blocks[b].next = w->free_block; w->free_block = b; }
        }
    }
    for (int g = 0; g < e->group_count; g++) e->groups[g] = (Group){s->lockstep ? 0 : g, s->lockstep ? e->worker_count : 1, 0, 0, 0};
    for (int h = 0; h < HISTOGRAMS; h++) e->histograms[h] = (Histogram){bounds[h], sizes[h], calloc(sizes[h] + 1, sizeof(double)), 0};
    return e;
}

static void free_queue(Queue *q) { free(q->at); free(q->slot); }

void engine_free(Engine *e) {
    for (int i = 0; i < e->worker_count; i++) {
        Worker *w = e->workers + i;
        free(w->running); free(w->heap); free(w->blocks); free(w->buckets); free(w->adapters);
    }
    for (long i = 0; i < e->slot_count; i++) free(e->slots[i].ids);
    for (int h = 0; h < HISTOGRAMS; h++) free(e->histograms[h].counts);
    free_queue(&e->arrivals); free_queue(&e->ready); free_queue(&e->transfers); free_queue(&e->held);
    free(e->workers); free(e->groups); free(e->slots); free(e->free_slots); free(e->token_times);
    free(e->first); free(e->end); free(e->tokens); free(e->slot_of); free(e->token_head); free(e->token_last); free(e->status);
    free(e);
}

static void make_room(Engine *e) {
    if (e->count == e->room) {
        e->room = 2 * e->room + 1024;
        e->first = realloc(e->first, e->room * sizeof(double)); e->end = realloc(e->end, e->room * sizeof(double));
        e->tokens = realloc(e->tokens, e->room * sizeof(int)); e->slot_of = realloc(e->slot_of, e->room * sizeof(int));
        e->token_head = realloc(e->token_head, e->room * sizeof(int)); e->token_last = realloc(e->token_last, e->room * sizeof(int));
        e->status = realloc(e->status, e->room);
    }
    if (!e->free_count) {
        long more = e->slot_count + 256;
        e->slots = realloc(e->slots, (e->slot_count + more) * sizeof(Request));
        e->free_slots = realloc(e->free_slots, (e->slot_count + more) * sizeof(int));
        memset(e->slots + e->slot_count, 0, more * sizeof(Request));
        for (long i = more - 1; i >= 0; i--) e->free_slots[e->free_count++] = e->slot_count + i;
        e->slot_count += more;
    }
}

long engine_submit(Engine *e, double at, int prompt, int output, const int64_t *ids, int id_count, int keep_tokens) {
    const Structure *s = &e->s;
    make_room(e);
    int slot = e->free_slots[--e->free_count];
    Request *r = e->slots + slot;
    long number = e->count++;
    *r = (Request){.number = number, .arrival = at, .ready = at, .scheduled = NAN, .prompt = prompt, .output = output, .target = prompt,
                   .place = AT_FRONT, .keep_tokens = keep_tokens};
    e->first[number] = e->end[number] = NAN;
    e->tokens[number] = 0; e->status[number] = IN_FLIGHT; e->slot_of[number] = slot; e->token_head[number] = -1;
    uint64_t h = mix(e->seed ^ mix(number));
    double z = sqrt(-2 * log(uniform_of(h))) * cos(6.283185307179586 * uniform_of(mix(h)));
    r->acceptance = fmin(0.98, fmax(0.02, s->acceptance + s->acceptance_spread * z));
    if (prompt < 1 || output < 1 || prompt + output + s->draft_tokens + 2 * s->kv_block > s->kv_tokens) {
        end_request(e, r, at, FAILED); release_slot(e, slot);
        return number;
    }
    if (s->prefix_block && id_count) {
        r->id_count = least(id_count, prompt / s->prefix_block);
        r->ids = malloc((r->id_count + 1) * sizeof *ids);
        memcpy(r->ids, ids, r->id_count * sizeof *ids);
    }
    enqueue(&e->arrivals, at, slot);
    return number;
}

static void enter(Engine *e, int slot) { /* through the front */
    Request *r = e->slots + slot;
    const Structure *s = &e->s;
    if (r->is_cancelled) { release_slot(e, slot); return; }
    r->ready = e->now;
    if (s->front_connections) { r->is_connected = 1; e->connected++; }
    if (s->front_s > 0 || s->front_token_s > 0 || s->front_output_s > 0)
        r->ready = e->front_free = fmax(e->front_free, e->now) + s->front_s + s->front_token_s * r->prompt;
    if (r->ready <= e->now) route(e, slot); else enqueue(&e->ready, r->ready, slot);
}

static int has_connection(const Engine *e) { return !e->s.front_connections || e->connected < e->s.front_connections; }

static void arrive(Engine *e) {
    int slot = dequeue(&e->arrivals);
    if (has_connection(e) && !e->held.size) enter(e, slot); else enqueue(&e->held, e->now, slot);
}

static double pass_one_event(Engine *e, double to) { /* its time, or infinity if none is due until `to` */
    double arrival = next_at(&e->arrivals), ready = next_at(&e->ready), moved = next_at(&e->transfers), end = INFINITY;
    int g = -1;
    for (int i = 0; i < e->group_count; i++) if (e->groups[i].is_busy && e->groups[i].end < end) { end = e->groups[i].end; g = i; }
    if (e->held.size && has_connection(e)) { enter(e, dequeue(&e->held)); return e->now; }
    double at = fmin(fmin(fmin(arrival, ready), fmin(moved, end)), e->scale_at);
    if (at > to || isinf(at)) return INFINITY;
    e->now = at;
    if (at == end) end_step(e, g);
    else if (at == moved) { int slot = dequeue(&e->transfers); e->slots[slot].ready = at; route(e, slot); }
    else if (at == ready) route(e, dequeue(&e->ready));
    else if (at == arrival) arrive(e);
    else scale(e);
    return at;
}

void engine_advance(Engine *e, double to) {
    while (pass_one_event(e, to) <= to) {}
    if (to > e->now) e->now = to;
}

void engine_drain(Engine *e) { /* until all requests have ended */
    for (;;) {
        int in_flight = e->arrivals.size || e->ready.size || e->transfers.size || e->held.size;
        for (int i = 0; i < e->worker_count; i++) in_flight |= busy(e->workers + i) > 0;
        if (!in_flight) return;
        if (isinf(pass_one_event(e, INFINITY))) return; /* nothing fits any more */
    }
}

void engine_run(Engine *e, long n, const double *at, const int *prompt, const int *output, const long *offsets, const int64_t *ids) {
    for (long i = 0; i < n; i++) {
        engine_submit(e, at[i], prompt[i], output[i], offsets ? ids + offsets[i] : NULL, offsets ? offsets[i + 1] - offsets[i] : 0, 0);
        engine_advance(e, at[i]);
    }
}

void engine_cancel(Engine *e, long number) {
    int slot = e->slot_of[number];
    if (slot < 0) return;
    Request *r = e->slots + slot;
    r->is_cancelled = 1;
    if (r->place == IN_HEAP) e->workers[r->worker].waiting_count--;
    end_request(e, r, e->now, CANCELLED);
}

void engine_change(Engine *e, const Structure *s) { e->s = *s; }

void engine_drain_worker(Engine *e, int index) { e->workers[index].state = busy(e->workers + index) ? DRAINING : OFF; }

void engine_results(Engine *e, long from, long to, double *first, double *end, int *tokens, char *status) {
    for (long i = from; i < to; i++) {
        first[i - from] = e->first[i]; end[i - from] = e->end[i]; status[i - from] = e->status[i];
        tokens[i - from] = e->slot_of[i] >= 0 ? e->slots[e->slot_of[i]].generated : e->tokens[i];
    }
}

long engine_token_times(Engine *e, long number, double *times, long room) {
    long n = 0;
    for (int i = e->token_head[number]; i >= 0 && n < room; i = e->token_times[i].next) times[n++] = e->token_times[i].at;
    return n;
}

void engine_page(Engine *e, double *values, double **counts, double *sums) {
    double running = 0, waiting = e->transfers.size, fullest = 0, kv = 0, used = 0, live = 0;
    for (int i = 0; i < e->worker_count; i++) {
        Worker *w = e->workers + i;
        double usage = (double)w->kv_used / e->s.kv_tokens;
        waiting += w->waiting_count;
        for (long k = 0; k < w->running_count; k++) running += !e->slots[w->running[k]].is_ended && !e->slots[w->running[k]].is_cancelled;
        if (w->state != LIVE && w->state != DRAINING) continue;
        live++; used += usage; kv += e->s.kv_tokens;
        if (usage > fullest) fullest = usage;
    }
    if (e->s.page_front) waiting += e->ready.size + e->held.size;
    double all[] = {running, waiting, fullest, used / fmax(1, live), kv, live, e->preemptions, e->prompt_total, e->generation_total,
                    e->finished, e->cache_queries, e->cache_hits, e->busy_s, e->computed_total, e->now};
    memcpy(values, all, sizeof all);
    for (int h = 0; h < HISTOGRAMS; h++) { memcpy(counts[h], e->histograms[h].counts, (e->histograms[h].size + 1) * sizeof(double)); sums[h] = e->histograms[h].sum; }
}
