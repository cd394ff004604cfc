/* Ranks that meet at barriers while others give up, leave or die (worker_sdk/shm/shm_team.cc:
 * await_while(), look()). Who waits looks now and then what became of the others. A rank that has done
 * its part in a barrier before it left or died is not blamed for that barrier, and nobody fails in a
 * barrier because of a rank that gave up later than all had entered it.
 *
 * PLANT: a defect that must be found. Which ranks are missing is not asked again after 1: the state
 * of one that has left or died was read. 2: that of one that has given up.
 */
#ifndef RANKS
#define RANKS 3
#endif
#define TURNS 2
#ifndef PLANT
#define PLANT 0
#endif

mtype = { present, left, gave_up };
byte entered[RANKS];
mtype state[RANKS] = present;
bool dead[RANKS];     /* As its pidfd says. */
bool failed[RANKS];
byte complete[RANKS];     /* The latest barrier that all had entered when this rank gave up. */

#define ALL_IN(turn) (entered[0] >= (turn) && entered[1] >= (turn) && (RANKS < 3 || entered[RANKS - 1] >= (turn)))

/* One look at all peers: blames one, or not. What is missing is asked for before and after a peer's
 * state is read. */
inline look(turn) {
  peer = 0;
  do
  :: peer < RANKS && !failed[me] ->
    missing = entered[peer] < turn;
    how = state[peer];
    gone = dead[peer] && state[peer] != gave_up;
    if
    :: missing && (how == left || gone) ->
#if PLANT != 1
      missing = entered[peer] < turn;
#endif
      assert(!missing || entered[peer] < turn);
      failed[me] = missing
    :: else
    fi;
    peer++
  :: else -> break
  od;
  late = !ALL_IN(turn);
  peer = 0;
  do
  :: peer < RANKS && late && !failed[me] ->
    if
    :: state[peer] == gave_up ->
#if PLANT != 2
      late = !ALL_IN(turn);
#endif
      assert(!late || complete[peer] < turn);
      failed[me] = late
    :: else
    fi;
    peer++
  :: else -> break
  od
}

inline give_up() {
  atomic {
    complete[me] = (ALL_IN(2) -> 2 : (ALL_IN(1) -> 1 : 0));
    state[me] = gave_up
  }
}

proctype rank(byte me) {
  byte turn, peer;
  bool missing, gone, late;
  mtype how;
  turn = 1;
  do
  :: turn <= TURNS && !failed[me] ->
    entered[me] = turn;
    do
    :: ALL_IN(turn) -> break
    :: !ALL_IN(turn) -> look(turn); if :: failed[me] -> break :: else fi
    od;
    turn++
  :: else -> break
  od;
  /* However it ends, it ends. */
  if
  :: give_up()
  :: !failed[me] -> dead[me] = true
  :: !failed[me] -> state[me] = left
  fi
}

/* One rank that may do less than the others await. */
proctype quitter(byte me) {
  byte turn;
  do
  :: turn < TURNS -> turn++; entered[me] = turn
  :: break
  od;
  if
  :: give_up()
  :: dead[me] = true
  :: state[me] = left
  fi
}

init {
  byte r;
  atomic {
    run quitter(0);
    r = 1;
    do
    :: r < RANKS -> run rank(r); r++
    :: else -> break
    od
  }
}
