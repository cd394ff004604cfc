/* Ranks that hand each other chunks through two slots each, in turns, with one barrier a turn
 * (worker_sdk/shm: ShmTeam::exchange(), ShmBackend::in_turns(), reduce_staged()), and sleep where
 * they have to wait. Every order of their steps is explored; docs/shm.md says what this shows.
 *
 * A slot is written in two steps, so that who reads it meanwhile finds it torn. AWAKE: nobody sleeps,
 * so that there may be more ranks.
 *
 * PLANT: a defect that must be found. 1: one slot instead of two. 2: a barrier that waits for one
 * rank only. 3: waiting for others begins before this rank has entered. 4: nobody is woken. 5: a
 * waker looks for sleepers before it stores.
 */
#ifndef RANKS
#define RANKS 3
#endif
#define TURNS 4
#ifndef PLANT
#define PLANT 0
#endif
#if PLANT == 1
#define SLOT(turn) 0
#else
#define SLOT(turn) ((turn) % 2)
#endif
#define TORN 255

byte entered[RANKS];
byte sleepers[RANKS];
byte wakes[RANKS];       /* How often the kernel was told to wake who sleeps on entered[r]. */
byte slots[RANKS * 2];   /* The turn that each slot was filled in, from 1. */

inline publish(me, value) {
#ifdef AWAKE
  entered[me] = value
#else
#if PLANT == 5
  any = sleepers[me];
#endif
  entered[me] = value;
#if PLANT != 5
  any = sleepers[me];
#endif
#if PLANT != 4
  if
  :: any != 0 -> wakes[me]++
  :: else
  fi
#endif
#endif
}

/* The kernel compares and falls asleep in one step. */
inline await(peer, value) {
#ifdef AWAKE
  entered[peer] >= value
#else
  do
  :: entered[peer] >= value -> break
  :: else ->
    sleepers[peer]++;
    seen = entered[peer];
    if
    :: seen < value ->
      if
      :: atomic { entered[peer] == seen -> woken = wakes[peer] }
        wakes[peer] != woken
      :: entered[peer] != seen
      fi
    :: else
    fi;
    sleepers[peer]--
  od
#endif
}

proctype rank(byte me) {
  byte turn, peer, any, seen, woken;
  turn = 1;
  do
  :: turn <= TURNS ->
    slots[me * 2 + SLOT(turn)] = TORN;
    slots[me * 2 + SLOT(turn)] = turn;
#if PLANT != 3
    publish(me, turn);
#endif
    peer = 0;
    do
    :: peer < RANKS ->
      if
      :: peer != me -> await(peer, turn)
      :: else
      fi;
      peer++;
#if PLANT == 2
      if
      :: peer > 1 -> break
      :: else
      fi
#endif
    :: else -> break
    od;
#if PLANT == 3
    publish(me, turn);
#endif
    peer = 0;
    do
    :: peer < RANKS ->
      assert(slots[peer * 2 + SLOT(turn)] == turn);
      peer++
    :: else -> break
    od;
    turn++
  :: else -> break
  od
}

init {
  byte r;
  atomic {
    do
    :: r < RANKS -> run rank(r); r++
    :: else -> break
    od
  }
}
