/* A service of engines with continuous batching, in virtual time; serving.py says what the fields of a Service mean. Without fused
 * operations (-ffp-contract=off) the numbers are the same on every machine. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {  /* in the order of `serving.Service` */
    double step_s, sequence_s, prefill_token_s, kv_token_s, attention_s;
    double budget, slots, kv_tokens;
    double tokens_per_step;
    double mixed, admits_pieces, replicas;
} Service;

typedef struct { double rounds, first_s, slope_s; } Run;  /* steps that differ by the growing context only */
typedef struct { double value, weight; } Weighted;

/* An engine. clock: end of its latest step; stalled_s: time since the last decoding while sequences waited for prompts; rounds: steps
 * that decoded, of which slow_rounds took longer than limit_s; next_finish: round of the next end; batch: running requests in the order
 * of their admission, of which `decoding` have their prompt computed; used: KV tokens; offsets: context of the decoding sequences, less
 * what the rounds added.
 * Of a request: left: prompt tokens to compute; done: generated tokens when it last joined the decoding; joined, finish: rounds of its
 * engine, joined is UNSET unless it decodes; mark: first run of its engine's log after it joined; slow_at_join: its engine's slow rounds
 * then. */

typedef struct {
    const Service *service;
    const double *prompts, *outputs;
    const uint8_t *with_gaps;
    double *first_s, *end_s, *gap_s, *max_gap_s, *slow;
    double *left, *done, *joined, *finish, *slow_at_join;
    int64_t *mark;
    int64_t *queue, *batch, batch_size;
    int64_t head, tail, partial;
    double limit_s, clock, stalled_s, rounds, offsets, used, next_finish, slow_rounds;
    int64_t decoding;
    Run *log;
    int64_t log_size, log_room;
    int64_t *completed;
} Replica;

#define UNSET (-1.0)
#define BLOCK_SLACK 7.0  /* tokens of its last KV block that a sequence holds and does not use, on average */

static double context(const Replica *r) {
    return r->decoding * r->rounds * r->service->tokens_per_step + r->offsets;
}

static void find_next_finish(Replica *r) {
    r->next_finish = INFINITY;
    for (int64_t k = 0; k < r->batch_size; k++) {
        int64_t i = r->batch[k];
        if (r->joined[i] >= 0 && r->finish[i] < r->next_finish) r->next_finish = r->finish[i];
    }
}

static double tokens_of(const Replica *r, int64_t i) {
    if (r->joined[i] < 0) return r->done[i];
    double tokens = r->done[i] + (r->rounds - r->joined[i]) * r->service->tokens_per_step;
    return tokens < r->outputs[i] ? tokens : r->outputs[i];
}

/* The value at which the weights, summed in ascending order of the values, reach half of their sum. room: for n points; both change */
static double weighted_median(Weighted *points, Weighted *room, int64_t n, double half) {
    for (;;) {
        double pivot = points[n / 2].value, below = 0, equal = 0;
        int64_t smaller = 0, larger = 0;
        for (int64_t k = 0; k < n; k++) {
            Weighted point = points[k];
            if (point.value < pivot) below += point.weight, points[smaller++] = point;
            else if (point.value > pivot) room[larger++] = point;
            else equal += point.weight;
        }
        if (below >= half) {
            n = smaller;
            continue;
        }
        if (below + equal >= half) return pivot;
        half -= below + equal;
        Weighted *used = points;
        points = room, room = used, n = larger;
    }
}

static void record_gaps(Replica *r, int64_t i) {
    int64_t n = r->log_size - r->mark[i];
    if (n <= 0) return;
    const Run *runs = r->log + r->mark[i];
    Weighted *gaps = malloc(2 * n * sizeof(Weighted));
    double total = 0, most = 0;
    for (int64_t k = 0; k < n; k++) {
        double last = runs[k].first_s + fmax(0.0, runs[k].slope_s * (runs[k].rounds - 1));
        if (last > most) most = last;
        total += runs[k].rounds;
        gaps[k] = (Weighted){runs[k].first_s + runs[k].slope_s * (runs[k].rounds - 1) / 2, runs[k].rounds};
    }
    r->gap_s[i] = weighted_median(gaps, gaps + n, n, total / 2);
    free(gaps);
    if (most > r->max_gap_s[i]) r->max_gap_s[i] = most;
}

static void leave_decoding(Replica *r, int64_t i) {
    r->slow[i] += r->slow_rounds - r->slow_at_join[i];
    r->offsets -= r->prompts[i] + r->done[i] - r->joined[i] * r->service->tokens_per_step;
    r->decoding--;
    if (r->with_gaps[i]) record_gaps(r, i);
}

static void remove_from_batch(Replica *r, int64_t i) {
    int64_t k = r->batch_size - 1;
    while (r->batch[k] != i) k--;
    memmove(r->batch + k, r->batch + k + 1, (r->batch_size - k - 1) * sizeof(int64_t));
    r->batch_size--;
}

static double held(const Replica *r, int64_t i) {
    return r->joined[i] < 0 ? r->prompts[i] + r->done[i] - (i == r->partial ? r->left[i] : 0) + BLOCK_SLACK
                            : r->prompts[i] + r->done[i] + (r->rounds - r->joined[i]) * r->service->tokens_per_step + BLOCK_SLACK;
}

static void preempt(Replica *r) {
    int64_t i = r->batch[r->batch_size - 1];
    r->used -= held(r, i);
    if (r->joined[i] >= 0) {
        leave_decoding(r, i);
        r->done[i] = tokens_of(r, i);
        r->joined[i] = UNSET;
    } else {
        r->partial = -1;
    }
    r->batch_size--;
    r->queue[--r->head] = i;
}

static void complete(Replica *r, int64_t i, double at_s) {
    r->used -= held(r, i);
    r->end_s[i] = at_s;
    remove_from_batch(r, i);
    (*r->completed)++;
}

static void append_run(Replica *r, double rounds, double first_s, double slope_s) {
    if (first_s + slope_s * (rounds - 1) / 2 > r->limit_s) r->slow_rounds += rounds;
    if (r->log_size == r->log_room) {
        r->log_room *= 2;
        r->log = realloc(r->log, r->log_room * sizeof(Run));
    }
    r->log[r->log_size++] = (Run){rounds, first_s, slope_s};
}

/* Runs one step, or several equal ones, that begin before to_s. Returns 0 if nothing can run. */
static int step(Replica *r, double to_s, int64_t *ready) {
    const Service *s = r->service;
    double growth = r->decoding * s->tokens_per_step;
    int preempted = 0;
    while (r->decoding && r->used + growth > s->kv_tokens && r->batch_size > 1) {
        preempt(r);
        preempted = 1;
        growth = r->decoding * s->tokens_per_step;
    }
    if (preempted) find_next_finish(r);
    double spent = 0, attended = 0;
    int64_t count = 0, deferred = preempted;
    if (r->partial >= 0 || (!preempted && r->head < r->tail)) {
        /* Rejected drafts take tokens of the budget too: at least one of each sequence. */
        double scheduled = s->tokens_per_step > 1 ? ceil(s->tokens_per_step) + 1 : 1;
        double left = s->budget - (s->mixed ? r->decoding * scheduled : 0.0);
        while (left > 0) {
            if (r->partial < 0) {
                if (preempted || r->head == r->tail || r->batch_size >= s->slots) break;
                int64_t i = r->queue[r->head];
                double need = r->prompts[i] + r->done[i];
                double first = s->admits_pieces ? fmin(need, left) : need;
                if (r->used + first + BLOCK_SLACK > s->kv_tokens && r->batch_size) break;
                r->head++;
                r->used += BLOCK_SLACK;
                r->left[i] = need;
                r->joined[i] = UNSET;
                r->batch[r->batch_size++] = i;
                r->partial = i;
            }
            int64_t i = r->partial;
            double piece = r->left[i] > left ? left : r->left[i];
            if (r->used + piece > s->kv_tokens && r->batch_size > 1) {
                preempt(r);
                deferred = 1;
                break;
            }
            r->used += piece;
            attended += piece * (r->prompts[i] + r->done[i] - r->left[i] + piece / 2);
            r->left[i] -= piece;
            left -= piece;
            spent += piece;
            if (r->left[i] > 0) break;
            ready[count++] = i;
            r->partial = -1;
        }
    }
    int decodes = r->decoding && (s->mixed || !spent);
    if (!spent && !decodes) return 0;
    double memory_s = s->step_s, work_s = s->prefill_token_s * spent + s->attention_s * attended, slope_s = 0, n = 1;
    if (decodes) {
        work_s += s->sequence_s * r->decoding;
        memory_s += s->kv_token_s * context(r);
    }
    double first_s = memory_s + work_s;
    if (decodes) {
        if (!spent) {
            slope_s = s->kv_token_s * r->decoding * s->tokens_per_step;
            n = deferred ? 1 : r->next_finish - r->rounds;
            if (growth > 0) n = fmin(n, fmax(1.0, floor((s->kv_tokens - r->used) / growth)));
            double span_s = to_s - r->clock, half_s = first_s - slope_s / 2;
            if (n * (half_s + slope_s / 2 * n) > span_s)
                n = fmin(n, ceil(2 * span_s / (half_s + sqrt(half_s * half_s + 2 * slope_s * span_s))));
            n = fmax(1.0, n);
        }
    }
    r->clock += n * first_s + slope_s * n * (n - 1) / 2;
    if (decodes) {
        r->rounds += n;
        r->used += growth * n;
        if (r->stalled_s > 0) {
            append_run(r, 1, r->stalled_s + first_s, 0);
            if (n > 1) append_run(r, n - 1, first_s + slope_s, slope_s);
            r->stalled_s = 0;
        } else {
            append_run(r, n, first_s, slope_s);
        }
        if (r->next_finish <= r->rounds) {
            for (int64_t k = 0; k < r->batch_size;) {
                int64_t i = r->batch[k];
                if (r->joined[i] >= 0 && r->finish[i] <= r->rounds) {
                    leave_decoding(r, i);
                    complete(r, i, r->clock);
                } else {
                    k++;
                }
            }
            find_next_finish(r);
        }
    } else if (r->decoding) {
        r->stalled_s += first_s;
    }
    for (int64_t k = 0; k < count; k++) {
        int64_t i = ready[k];
        if (r->first_s[i] < 0) r->first_s[i] = r->clock;
        r->done[i] += 1;
        r->used += 1;
        if (r->done[i] >= r->outputs[i]) {
            complete(r, i, r->clock);
            continue;
        }
        r->joined[i] = r->rounds;
        r->finish[i] = r->rounds + ceil((r->outputs[i] - r->done[i]) / s->tokens_per_step);
        r->offsets += r->prompts[i] + r->done[i] - r->rounds * s->tokens_per_step;
        r->decoding++;
        r->mark[i] = r->log_size;
        r->slow_at_join[i] = r->slow_rounds;
        if (r->finish[i] < r->next_finish) r->next_finish = r->finish[i];
    }
    return 1;
}

static void advance(Replica *r, double to_s, int64_t *ready) {
    while (r->clock < to_s) {
        if (!step(r, to_s, ready)) r->clock = to_s;
    }
}

/* Returns the number of requests that were served before more than max_waiting waited. Outputs are -1 where there is nothing. */
int64_t serve_stream(const Service *service, int64_t count, const double *at_s, const double *prompts, const double *outputs,
              const uint8_t *with_gaps, double until_s, double limit_s, double max_waiting, int64_t readings,
              const double *readings_s, double *first_s, double *end_s, double *gap_s, double *max_gap_s, double *slow,
              double *running, double *waiting) {
    int64_t replicas = (int64_t)service->replicas, completed = 0;
    double *state = malloc(5 * count * sizeof(double) + 8);
    int64_t *mark = malloc(count * sizeof(int64_t) + 8), *ready = malloc(count * sizeof(int64_t) + 8);
    Replica *all = calloc(replicas, sizeof(Replica));
    for (int64_t i = 0; i < count; i++) {
        first_s[i] = end_s[i] = gap_s[i] = max_gap_s[i] = UNSET;
        slow[i] = 0;
        state[count + i] = 0;          /* done */
        state[2 * count + i] = UNSET;  /* joined */
    }
    for (int64_t k = 0; k < replicas; k++) {
        Replica *r = all + k;
        r->service = service;
        r->prompts = prompts, r->outputs = outputs, r->with_gaps = with_gaps;
        r->first_s = first_s, r->end_s = end_s, r->gap_s = gap_s, r->max_gap_s = max_gap_s, r->slow = slow;
        r->left = state, r->done = state + count, r->joined = state + 2 * count, r->finish = state + 3 * count;
        r->slow_at_join = state + 4 * count;
        r->mark = mark;
        r->queue = malloc((2 * count + 2) * sizeof(int64_t));
        r->batch = malloc((count + 1) * sizeof(int64_t));
        r->head = r->tail = count;
        r->partial = -1;
        r->limit_s = limit_s;
        r->next_finish = INFINITY;
        r->log_room = 1024;
        r->log = malloc(r->log_room * sizeof(Run));
        r->completed = &completed;
    }
    int64_t page = 0, next = 0, served = count;
    for (int64_t i = 0; i <= count; i++) {
        double due_s = i < count ? at_s[i] : until_s;
        while (page < readings && readings_s[page] <= due_s) {
            running[page] = waiting[page] = 0;
            for (int64_t k = 0; k < replicas; k++) {
                advance(all + k, readings_s[page], ready);
                running[page] += all[k].batch_size;
                waiting[page] += all[k].tail - all[k].head;
            }
            page++;
        }
        if (i == count || due_s > until_s) break;
        Replica *chosen = all + next;
        advance(chosen, due_s, ready);
        next = (next + 1) % replicas;
        chosen->queue[chosen->tail++] = i;
        if (chosen->tail - chosen->head > max_waiting) {
            served = i + 1;
            until_s = due_s;
            break;
        }
    }
    for (int64_t k = 0; k < replicas; k++) {
        advance(all + k, until_s, ready);
        free(all[k].queue), free(all[k].batch), free(all[k].log);
    }
    free(state), free(mark), free(ready), free(all);
    return served;
}
