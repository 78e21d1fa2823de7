//! Four small problems on which every optimizer must converge, with any number of workers.
//!
//! ```text
//! quadratic    ½ Σ h_k (x_k − c_k)²                      ill-conditioned; every worker has its own c, the mean is true
//! rosenbrock   Σ 10 (x_(k+1) − x_k²)² + (1 − x_k)²       a curved valley; noise on the gradient
//! logistic     mean log(1 + exp(−y w·z)) + ½ρ‖w‖²        every worker has its own share of the points
//! network      mean ½‖W2 tanh(W1 z + b1) + b2 − y‖²      not convex; every worker draws from all points
//! ```
//!
//! `loss` is the true problem. `gradient` is what one worker sees of it at one step: noisy, but its mean over workers
//! and steps is the gradient of `loss`. Parameters are f32, the arithmetic inside is f64. Nothing is left to chance:
//! whatever is random is a function of (worker, step).

pub struct Problem {
    pub name: &'static str,
    pub start: Vec<f32>,
    pub steps: u64,
    /// A constant rate that suits Adam.
    pub lr: f32,
    /// A loss that counts as converged; the start is far above it.
    pub target: f64,
    pub value: Box<Value>,
}

/// The loss at x and its gradient: as one worker sees them at one step, or in truth (`None`).
pub type Value = dyn Fn(&[f64], Option<View>) -> (f64, Vec<f64>) + Send + Sync;

/// Who looks, and when.
#[derive(Clone, Copy)]
pub struct View {
    pub worker: usize,
    pub workers: usize,
    pub step: u64,
}

impl Problem {
    pub fn loss(&self, params: &[f32]) -> f64 {
        (self.value)(&widen(params), None).0
    }

    pub fn gradient(&self, params: &[f32], worker: usize, workers: usize, step: u64, out: &mut [f32]) {
        let view = View { worker, workers, step };
        let (_, gradient) = (self.value)(&widen(params), Some(view));
        for (out, g) in out.iter_mut().zip(gradient) {
            *out = g as f32;
        }
    }
}

pub fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x as f64).collect()
}

pub fn all() -> Vec<Problem> {
    vec![quadratic(), rosenbrock(), logistic(), network()]
}

/// A worker sees c moved: by a shift of its own, the shifts of all being 0 in the mean, and by noise.
pub fn quadratic() -> Problem {
    const D: usize = 100;
    let curvature = |k: usize| 100f64.powf(-(k as f64) / (D - 1) as f64); // h: 1 to 1/100
    let center = Random::new(1).normals(D, 1.0); // c
    let moved = |view: View| {
        let own = |worker: usize| Random::new(100 + worker as u64).normals(D, 0.3);
        let mut shift = own(view.worker);
        for worker in 0..view.workers {
            add(&mut shift, -1.0 / view.workers as f64, &own(worker));
        }
        add(&mut shift, 1.0, &Random::at(view).normals(D, 0.3));
        shift
    };
    let value = move |x: &[f64], view: Option<View>| {
        let shift = view.map_or(vec![0.0; D], moved);
        let away: Vec<f64> = (0..D).map(|k| x[k] - center[k] - shift[k]).collect();
        let loss = (0..D).map(|k| 0.5 * curvature(k) * away[k] * away[k]).sum();
        (loss, (0..D).map(|k| curvature(k) * away[k]).collect())
    };
    Problem { name: "quadratic", start: vec![0.0; D], steps: 1000, lr: 0.005, target: 0.5, value: Box::new(value) }
}

pub fn rosenbrock() -> Problem {
    const D: usize = 6;
    let value = |x: &[f64], view: Option<View>| {
        let mut loss = 0.0;
        let mut gradient = view.map_or(vec![0.0; D], |view| Random::at(view).normals(D, 1.0));
        for k in 0..D - 1 {
            let (across, along) = (x[k + 1] - x[k] * x[k], 1.0 - x[k]);
            loss += 10.0 * across * across + along * along;
            gradient[k] -= 40.0 * across * x[k] + 2.0 * along;
            gradient[k + 1] += 20.0 * across;
        }
        (loss, gradient)
    };
    Problem { name: "rosenbrock", start: vec![0.0; D], steps: 600, lr: 0.01, target: 0.5, value: Box::new(value) }
}

pub fn logistic() -> Problem {
    const D: usize = 20;
    const RIDGE: f64 = 1e-2; // ρ
    let mut random = Random::new(2);
    let truth = random.normals(D, 1.0);
    let inputs = points(&mut random, D); // z
    let label = |z: &Vec<f64>| (dot(&truth, z) + random.normal()).signum();
    let labels: Vec<f64> = inputs.iter().map(label).collect(); // y
    let value = move |w: &[f64], view: Option<View>| {
        let (mut loss, mut gradient) = (0.5 * RIDGE * dot(w, w), vec![0.0; D]);
        add(&mut gradient, RIDGE, w);
        let batch = batch(view, |v, random| v.worker + v.workers * random.below(POINTS / v.workers));
        let share = 1.0 / batch.len() as f64;
        for p in batch {
            let (z, y) = (&inputs[p], labels[p]);
            let margin = y * dot(w, z);
            loss += share * (-margin).exp().ln_1p();
            add(&mut gradient, -share * y / (1.0 + margin.exp()), z);
        }
        (loss, gradient)
    };
    Problem { name: "logistic", start: vec![0.0; D], steps: 300, lr: 0.03, target: 0.3, value: Box::new(value) }
}

/// To learn: as many waves sin(w·z) as the network has outputs.
pub fn network() -> Problem {
    let network = Network { inputs: 6, hidden: 48, outputs: 2 };
    let mut random = Random::new(3);
    let start = network.start(&mut random);
    let waves = [random.normals(6, 0.5), random.normals(6, 0.5)];
    let inputs = points(&mut random, 6); // z
    let value = move |x: &[f64], view: Option<View>| {
        let (mut loss, mut gradient) = (0.0, vec![0.0; x.len()]);
        let batch = batch(view, |_, random| random.below(POINTS));
        let share = 1.0 / batch.len() as f64;
        for p in batch {
            let z = &inputs[p];
            let y = [0, 1].map(|wave| dot(&waves[wave], z).sin());
            let (point_loss, point_gradient) = network.point(x, z, &y);
            loss += share * point_loss;
            add(&mut gradient, share, &point_gradient);
        }
        (loss, gradient)
    };
    Problem { name: "network", start, steps: 500, lr: 0.005, target: 0.1, value: Box::new(value) }
}

/// So many, that up to six workers get equal shares.
const POINTS: usize = 360;
const BATCH: usize = 16;

fn points(random: &mut Random, d: usize) -> Vec<Vec<f64>> {
    (0..POINTS).map(|_| random.normals(d, 1.0)).collect()
}

/// What a worker draws at a step; all points for the true loss.
fn batch(view: Option<View>, draw: impl Fn(View, &mut Random) -> usize) -> Vec<usize> {
    let Some(view) = view else {
        return (0..POINTS).collect();
    };
    let mut random = Random::at(view);
    (0..BATCH).map(|_| draw(view, &mut random)).collect()
}

/// W2·tanh(W1·z + b1) + b2, the parameters in the order W1, b1, W2, b2, matrices by rows.
#[derive(Clone, Copy)]
struct Network {
    inputs: usize,
    hidden: usize,
    outputs: usize,
}

impl Network {
    /// Weights of size 1/√(how many meet in a unit), biases 0.
    fn start(&self, random: &mut Random) -> Vec<f32> {
        let w1 = random.normals(self.hidden * self.inputs, (self.inputs as f64).powf(-0.5));
        let w2 = random.normals(self.outputs * self.hidden, (self.hidden as f64).powf(-0.5));
        let x = [w1, vec![0.0; self.hidden], w2, vec![0.0; self.outputs]].concat();
        x.iter().map(|&x| x as f32).collect()
    }

    /// ½‖output − y‖² at one point, and its gradient.
    fn point(&self, x: &[f64], z: &[f64], y: &[f64]) -> (f64, Vec<f64>) {
        let (layer1, layer2) = x.split_at(self.hidden * (self.inputs + 1));
        let h: Vec<f64> = affine(layer1, z).iter().map(|s| s.tanh()).collect();
        let mut error = affine(layer2, &h);
        add(&mut error, -1.0, y);

        let (gradient2, mut to_h) = affine_backward(layer2, &h, &error);
        for (d, h) in to_h.iter_mut().zip(&h) {
            *d *= 1.0 - h * h; // tanh' = 1 − tanh²
        }
        let (gradient1, _) = affine_backward(layer1, z, &to_h);
        (0.5 * dot(&error, &error), [gradient1, gradient2].concat())
    }
}

/// W·z + b, the layer being W, then b.
fn affine(layer: &[f64], z: &[f64]) -> Vec<f64> {
    let outputs = layer.len() / (z.len() + 1);
    let (w, b) = layer.split_at(outputs * z.len());
    let rows = w.chunks(z.len()).zip(b);
    rows.map(|(row, b)| dot(row, z) + b).collect()
}

/// With d the slope of the loss along W·z + b: its slopes d·zᵀ, d along the layer, and Wᵀ·d along z.
fn affine_backward(layer: &[f64], z: &[f64], d: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut to_layer, mut to_z) = (Vec::new(), vec![0.0; z.len()]);
    for (d, row) in d.iter().zip(layer.chunks(z.len())) {
        to_layer.extend(z.iter().map(|z| d * z));
        add(&mut to_z, *d, row);
    }
    to_layer.extend(d);
    (to_layer, to_z)
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// to ← to + c·x.
pub fn add(to: &mut [f64], c: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += c * x);
}

/// splitmix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The numbers of one worker at one step.
    fn at(view: View) -> Self {
        Random::new(Random::new((view.worker as u64 + 1) << 32 | view.step).bits())
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance 1: the sum of twelve uniforms, less six.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    pub fn normals(&mut self, count: usize, deviation: f64) -> Vec<f64> {
        (0..count).map(|_| deviation * self.normal()).collect()
    }
}
