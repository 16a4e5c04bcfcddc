/* Threads that work through the stages of a pass together.
 *
 * A stage is a number of equal pieces of work. A thread takes pieces of its own share first, then of the others'. A
 * stage is over when its pieces are done, not when all threads have come by: a thread that the system has taken off
 * its core holds nobody up unless it holds a piece. Who waits for a piece spins for some microseconds, then yields;
 * who waits for a pass sleeps. So processes that share cores lose time to each other, but not by spinning.
 */
#ifndef FORERUN_TEAM_H
#define FORERUN_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "vector.h"

#define STAGE_SPINS 1000
#define PASS_SPINS 1000
#define OPEN (1 << 20) /* in `state`: threads may join the pass; below it the number of those that have */

typedef struct {
    _Atomic int32_t value;
    char padding[60];
} Counter;

struct Team;
typedef void (*Body)(const void *model, const void *pass, struct Team *team, int thread);

typedef struct Team {
    int num_threads, num_stages;
    Counter *counters; /* of each stage: pieces taken of each thread's share, then pieces done */
    Counter state;
    _Atomic int64_t generation;
    pthread_mutex_t lock;
    pthread_cond_t begun;
    Body body;
    const void *model, *pass;
    pthread_t *threads;
} Team;

typedef struct {
    Team *team;
    int thread;
} Member;

INLINE void relax(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Call `work(piece)` for pieces of the stage until none is left, then wait until all are done. */
#define STAGE(team, thread, stage, count, piece, WORK)                                                       \
    do {                                                                                                     \
        const int stage_count_ = (count), members_ = (team)->num_threads;                                    \
        Counter *taken_ = (team)->counters + (long)(stage) * (members_ + 1);                                 \
        int finished_ = 0;                                                                                   \
        for (int owner_ = 0; owner_ < members_ && !stage_over(team, stage, stage_count_); owner_++) {        \
            const int share_ = (owner_ + (thread)) % members_;                                               \
            const int begin_ = (int)((long)stage_count_ * share_ / members_);                                \
            const int end_ = (int)((long)stage_count_ * (share_ + 1) / members_);                            \
            int piece;                                                                                       \
            while ((piece = begin_ + atomic_fetch_add_explicit(&taken_[share_].value, 1, memory_order_relaxed)) < \
                   end_) {                                                                                   \
                WORK;                                                                                        \
                finished_++;                                                                                 \
            }                                                                                                \
        }                                                                                                    \
        if (finished_) atomic_fetch_add_explicit(&taken_[members_].value, finished_, memory_order_release);  \
        await_stage(team, stage, stage_count_);                                                              \
    } while (0)

INLINE int stage_over(Team *team, int stage, int count) {
    Counter *done = team->counters + (long)stage * (team->num_threads + 1) + team->num_threads;
    return atomic_load_explicit(&done->value, memory_order_acquire) == count;
}

static void await_stage(Team *team, int stage, int count) {
    for (int spins = 0; !stage_over(team, stage, count); spins++) {
        if (spins < STAGE_SPINS)
            relax();
        else
            sched_yield();
    }
}

static int join_pass(Team *team) {
    int32_t state = atomic_load(&team->state.value);
    while (state & OPEN)
        if (atomic_compare_exchange_weak(&team->state.value, &state, state + 1)) return 1;
    return 0;
}

static void leave_pass(Team *team) { atomic_fetch_sub(&team->state.value, 1); }

static int64_t await_pass(Team *team, int64_t seen) {
    for (int spins = 0; spins < PASS_SPINS; spins++) {
        if (atomic_load(&team->generation) != seen) return atomic_load(&team->generation);
        relax();
    }
    pthread_mutex_lock(&team->lock);
    while (atomic_load(&team->generation) == seen) pthread_cond_wait(&team->begun, &team->lock);
    pthread_mutex_unlock(&team->lock);
    return atomic_load(&team->generation);
}

static void *member_main(void *argument) {
    Member member = *(Member *)argument;
    Team *team = member.team;
    free(argument);
    for (int64_t seen = 0; seen >= 0;) {
        seen = await_pass(team, seen);
        if (seen >= 0 && join_pass(team)) {
            team->body(team->model, team->pass, team, member.thread);
            leave_pass(team);
        }
    }
    return NULL;
}

static void announce(Team *team, int64_t generation) {
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->generation, generation);
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
}

/* Null if memory or threads ran out before there was one to work with. */
static Team *team_start(int num_threads, int num_stages) {
    Team *team = calloc(1, sizeof(Team));
    if (!team) return NULL;
    team->num_threads = num_threads;
    team->num_stages = num_stages;
    team->counters = aligned_alloc(64, sizeof(Counter) * num_stages * (num_threads + 1));
    team->threads = calloc(num_threads, sizeof(pthread_t));
    if (!team->counters || !team->threads) {
        free(team->counters);
        free(team->threads);
        free(team);
        return NULL;
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    int started = 1; /* the caller is thread 0 */
    for (; started < num_threads; started++) {
        Member *member = malloc(sizeof(Member));
        if (!member) break;
        *member = (Member){team, started};
        if (pthread_create(&team->threads[started], NULL, member_main, member)) {
            free(member);
            break;
        }
    }
    team->num_threads = started < num_threads ? started : num_threads;
    return team;
}

static void team_stop(Team *team) {
    announce(team, -1);
    for (int i = 1; i < team->num_threads; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->lock);
    free(team->counters);
    free(team->threads);
    free(team);
}

/* Run `body` on the caller and on the members that come in time; all have left when it returns. */
static void team_run(Team *team, Body body, const void *model, const void *pass) {
    memset(team->counters, 0, sizeof(Counter) * team->num_stages * (team->num_threads + 1));
    team->body = body;
    team->model = model;
    team->pass = pass;
    if (team->num_threads > 1) {
        atomic_store(&team->state.value, OPEN);
        announce(team, atomic_load(&team->generation) + 1);
    }
    body(model, pass, team, 0);
    atomic_fetch_and(&team->state.value, ~OPEN);
    for (int spins = 0; atomic_load(&team->state.value); spins++) {
        if (spins < STAGE_SPINS)
            relax();
        else
            sched_yield();
    }
}

#endif
