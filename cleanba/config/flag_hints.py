"""What somebody may have meant who gives a flag that does not exist."""

import difflib

ALIASES = {  # by the flag that is meant: names from other libraries, and from habit
    "learning_rate": "lr alpha step_size",
    "local_num_envs": "num_envs n_envs envs nenvs num_env",
    "total_timesteps": "timesteps steps total_steps max_steps frames n_timesteps num_timesteps",
    "env_id": "env env_name game environment task gym_id",
    "env_options": "env_kwargs env_args frame_skip frameskip repeat_action_probability",
    "num_steps": "n_steps rollout_length unroll_length rollout horizon",
    "num_minibatches": "batch_size minibatch_size mini_batch_size",
    "learner_device_ids": "gpu gpus device devices cuda device_ids",
    "num_actor_threads": "actors num_actors",
    "env_threads": "threads num_threads workers num_workers num_cpus cpus",
    "update_epochs": "epochs n_epochs num_epochs ppo_epochs",
    "clip_coef": "clip clip_range clip_param clip_eps epsilon eps",
    "ent_coef": "entropy entropy_coef entropy_cost entropy_coeff ent",
    "vf_coef": "value_coef value_loss_coef vf_coeff baseline_cost",
    "gamma": "discount discount_factor",
    "gae_lambda": "lam lambda gae lmbda",
    "max_grad_norm": "grad_clip clip_grad_norm max_norm",
    "anneal_lr": "lr_schedule lr_decay lr_anneal",
    "hiddens": "hidden_size hidden_sizes net_arch hidden",
    "recurrent": "lstm rnn gru use_lstm memory",
    "normalize_observations": "norm_obs obs_norm normalize_obs normalize",
    "normalize_rewards": "norm_reward norm_rewards normalize_reward",
    "compute_dtype": "precision dtype bf16 bfloat16 fp16 amp",
    "deterministic": "torch_deterministic cuda_deterministic",
    "track": "wandb use_wandb tensorboard",
    "wandb_project_name": "wandb_project project",
    "wandb_entity": "entity",
    "save_model": "save save_path",
    "capture_video": "video record_video record render",
    "resume": "load restore checkpoint restart continue",
    "init_from": "pretrained model finetune init",
    "runs_dir": "out output output_dir logdir log_dir save_dir folder",
    "exp_name": "name run_name experiment tag",
    "seed": "random_seed",
    "episodes": "n_episodes num_episodes n_eval_episodes eval_episodes",
    "greedy": "stochastic sample",
}
NOTES = {
    "env_options": """It takes JSON, as in '{"frame_skip": 4}'.""",
    "num_minibatches": "A batch is --num-steps of every environment, cut into so many minibatches.",
    "learner_device_ids": "--actor-device-ids choose actions; GPUs are used wherever JAX sees them.",
    "local_num_envs": "It counts the environments of one actor thread (--num-actor-threads).",
    "track": "It logs to Weights & Biases; TensorBoard events are always written.",
}


def hint(given: str, names: list[str], prog: str) -> str:
    """One line about a flag that is not among these names."""
    name = given.lstrip("-").replace("-", "_").lower()
    meant = [flag for flag in names if name in ALIASES.get(flag, "").split()]
    if not meant:
        close = difflib.get_close_matches(name.removeprefix("no_"), names, n=2, cutoff=0.7)
        longer = [flag for flag in names if set(name.split("_")) <= set(flag.split("_"))]
        meant = list(dict.fromkeys([*close, *longer]))[:3]
    if not meant:
        return f"there is no flag {given}; {prog} --help lists all"
    flags = " or ".join(f"--{flag.replace('_', '-')}" for flag in meant)
    note = NOTES.get(meant[0], "") if len(meant) == 1 else ""
    return f"there is no flag {given}; did you mean {flags}? {note}".rstrip()
